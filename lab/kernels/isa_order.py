"""What a protocol needs of the machine code: order, visibility, bypass, the rounding mode."""

import re
from collections.abc import Sequence

from lab.kernels.isa_code import LOAD, STORE, cache_bits, is_spill, lines_behind, loops, width
from lab.kernels.isa_rules import Rules

RELEASED, DRAINED, ACQUIRE = "; lab flag store", "; lab drained flag store", "; lab acquire"
READS_NOTHING, LOADS, LOADS_END = "; lab reads nothing", "; lab loads ", "; lab loads end"


def check_release(code: Sequence[str], rules: Rules) -> str:
    """Every marked flag store, and every write-back at all, is followed by its wait before the next store.

    A drained one stands behind a barrier that `check_drain` looks at, and needs nothing more where the payload's own
    scope has carried it all the way.
    """
    marks = [i for i, line in enumerate(code) if line in (RELEASED, DRAINED)]
    if not marks:
        return "no flag store found"
    for mark in marks:
        store = next((i for i in range(mark, len(code)) if STORE.match(code[i])), None)
        if store is None:
            return "no store after the mark"
        before = range(store - 1, -1, -1)
        last = next((i for i in before if STORE.match(code[i]) or code[i].startswith("s_barrier")), -1)
        window = code[last + 1 : store]
        if code[mark] == DRAINED:
            if not rules.scoped:
                return f"a drained flag store, but the payload has no system scope: {code[store]}"
            if last < 0 or code[last].startswith("s_barrier") or any(re.match(rules.wait, line) for line in window):
                continue
            return f"flag store can pass the stores before it: {code[store]}"
        if rules.write_back:
            written = [i for i, line in enumerate(window) if line.startswith(rules.write_back)]
            if not written:
                return f"flag store without {rules.write_back}: {code[store]}"
            window = window[written[-1] :]
        if not any(re.match(rules.wait, line) for line in window):
            return f"flag store can pass the {'write-back' if rules.write_back else 'stores'} before it: {code[store]}"
    for i, line in enumerate(code):
        if rules.write_back and line.startswith(rules.write_back):
            after = next((x for x in code[i + 1 :] if STORE.match(x) or re.match(rules.wait, x)), "")
            if STORE.match(after):
                return f"write-back not waited for: {after}"
    return "pass"


def check_drain(code: Sequence[str], rules: Rules) -> str:
    """Every wave waits for its own payload stores before the barrier in front of the flag."""
    barriers = [i for i, line in enumerate(code) if line.startswith("s_barrier")]
    for i, end in zip(barriers, [*barriers[1:], len(code)], strict=True):
        if not {RELEASED, DRAINED} & set(code[i:end]):
            continue
        for before in reversed(code[:i]):  # within the barrier's basic block, so on every way to it
            if re.match(rules.wait, before):
                break
            if STORE.match(before) or before.startswith((".LBB", "s_barrier")):
                return "barrier in front of a flag store without a wait for the wave's stores"
    return "pass"


def check_acquire(code: Sequence[str], rules: Rules) -> str:
    """Every acquire invalidates before the next load, and the wave that polled acquires before the next barrier.

    Where a block may span two near caches, every wave acquires once more behind that barrier. A meeting that says that
    nothing is read behind it needs none, if that is so.
    """
    marks = [i for i, line in enumerate(code) if line == ACQUIRE]
    if not marks:
        return "no acquire found"
    for mark in marks:
        end = next((i for i in range(mark, len(code)) if LOAD.match(code[i])), len(code))
        for needed in rules.invalidates:
            if not any(line.startswith(needed) for line in code[mark:end]):
                return f"load without {needed} after the flag: {code[end] if end < len(code) else 'end'}"
    for store in (i for i, line in enumerate(code) if line in (RELEASED, DRAINED)):
        barrier = next((i for i in range(store, len(code)) if code[i].startswith("s_barrier")), len(code))
        if READS_NOTHING in code[store:barrier]:
            read = next(filter(_reads_payload, lines_behind(code, barrier)), None)
            if read:
                return f"a meeting without acquire, but behind it: {read}"
            continue
        if not any(store < mark < barrier for mark in marks):
            return "the wave that polls a flag does not acquire before the block barrier"
        load = next((i for i in range(barrier, len(code)) if LOAD.match(code[i])), len(code))
        if rules.two_caches and not any(barrier < mark < load for mark in marks):
            return "the waves that poll no flag do not acquire behind the block barrier"
    return "pass"


def _reads_payload(line: str) -> bool:
    return bool(LOAD.match(line)) and width(line) == 16


def check_payload(code: Sequence[str], rules: Rules, polled: bool) -> str:
    """Payload goes past the caches, 16 bytes at a time; a polled payload carries the bits of a flag load."""
    wide = [line for line in code if width(line) == 16 and cache_bits(line)]
    wrong = [line for line in wide if not cache_bits(line) >= rules.payload]
    if wrong:
        return f"lacks {' '.join(sorted(rules.payload))}: {wrong[0]}"
    if not any(STORE.match(line) for line in wide) and READS_NOTHING not in code:  # who pulls pushes nothing
        return "no 16-byte bypass store"
    if polled and rules.polled != rules.payload:  # two 8-byte loads: see load_polled_bypass
        loads = [line for line in code if LOAD.match(line) and width(line) == 8 and cache_bits(line) >= rules.polled]
        return "pass" if len(loads) >= 2 else "no bypass load of polled payload"
    return "pass" if any(LOAD.match(line) for line in wide) else "no 16-byte bypass load"


def check_wide(code: Sequence[str]) -> str:
    """The fast path reads the input and writes the output 16 bytes at a time, and no edge loads element by element."""
    plain = [line for line in code if width(line) == 16 and not cache_bits(line)]
    for what, pattern in (("load", LOAD), ("store", STORE)):
        if not any(pattern.match(line) for line in plain):
            return f"no 16-byte {what} of the user's tensor"
    for loop in loops(code):
        body = code[loop.start : loop.end]
        loads = [line for line in body if LOAD.match(line)]
        if len(loads) == 1 and width(loads[0]) <= 4 and all(width(line) < 16 for line in body):
            return f"a loop that waits for one element at a time: {loads[0]}"
    return "pass"


def packets_polled(code: Sequence[str]) -> int:
    """The packets that a waiting loop says it polls at once, where fewest; 0: the kernel waits for flags."""
    asleep = [loop for loop in loops(code) if any(line.startswith("s_sleep") for line in code[loop.start : loop.end])]
    marks = {
        int(code[i].removeprefix(LOADS))
        for loop in asleep for i in range(loop.start, loop.end)
        if code[i].startswith(LOADS) and code[i] != LOADS_END
        and not any(STORE.match(line) and width(line) == 16 for line in code[loop.start : loop.end])
    }  # fmt: skip
    return min(marks, default=0)


def check_poll(code: Sequence[str], rules: Rules, packets: int) -> str:
    """Every waiting loop loads anew, past the caches, all that it waits for.

    A wait for a flag holds three loads: the flag, aborted_at, the flag again for a report. A wait for packets holds
    one for each of the packets and one for a report.
    """
    size, needed = 8, 3
    if packets:
        size, needed = (16, packets + 1) if rules.polled == rules.payload else (8, 2 * (packets + 1) + 1)
    # A loop over the vectors of a message stores payload; a waiting loop does not.
    waiting = [
        loop for loop in loops(code)
        if not any(STORE.match(line) and width(line) == 16 for line in code[loop.start : loop.end])
    ]  # fmt: skip
    sleeps = [i for i, line in enumerate(code) if line.startswith("s_sleep")]
    for sleep in sleeps:
        loads = [
            sum(
                bool(LOAD.match(x)) and width(x) == size and cache_bits(x) >= rules.polled
                for x in code[loop.start : loop.end]
            )
            for loop in waiting
            if loop.start < sleep < loop.end
        ]
        if max(loads, default=0) < needed:
            return f"a waiting loop with {max(loads, default=0)} {size}-byte loads of {needed}"
    return "pass" if sleeps else "no waiting loop found"


def check_spills(numbers: dict[str, int], code: Sequence[str]) -> str:
    """No register goes to memory."""
    if numbers["vgpr_spill_count"] or numbers["private_segment_fixed_size"]:
        return f"{numbers['vgpr_spill_count']} spills, {numbers['private_segment_fixed_size']} bytes of scratch"
    return "pass" if not any(is_spill(line) and line.startswith("scratch_") for line in code) else "scratch access"


def check_rounding(numbers: dict[str, int], code: Sequence[str], rules: Rules, name: str) -> str:
    """The mode register says nearest even and keeps subnormals; bf16 is converted in pairs where that can be done."""
    for what, wanted in (("round", 0), ("denorm", 3)):
        for kind in ("32", "16_64"):
            found = numbers.get(f"amdhsa_float_{what}_mode_{kind}")
            if found != wanted:
                return f"{what} mode of fp{kind} is {found}, not {wanted}"
    if rules.packed and name.endswith("_bf16") and not any(line.startswith(rules.packed) for line in code):
        return "pass" if "gather" in name else f"no {rules.packed}"
    return "pass"
