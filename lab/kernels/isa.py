"""Read the machine code of the kernels back and check what the protocol needs of it, per AMD architecture.

Facts about the instructions are those of LLVM's "User Guide for AMDGPU Backend", memory model tables.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import UnknownNameError
from lab.kernels.build import HIP, KERNELS, build

TYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Rules:
    """What release, acquire and cache bypass look like on one architecture.

    Attributes:
        write_back: the cache write-back of a system-scope release; None where stores write through.
        wait: a wait instruction after which all earlier stores have been acknowledged.
        invalidates: what a system-scope acquire must execute before the next load.
        payload: cache bits that every 16-byte payload access carries.
        polled: cache bits of a load whose data is its own flag.
    """

    write_back: str | None
    wait: str
    invalidates: tuple[str, ...]
    payload: frozenset[str]
    polled: frozenset[str]


_GFX9_WAIT = r"s_waitcnt .*vmcnt\(0\)"
_SYSTEM = frozenset({"sc0", "sc1"})
_GFX94 = Rules("buffer_wbl2 sc0 sc1", _GFX9_WAIT, ("buffer_inv sc0 sc1",), _SYSTEM, _SYSTEM)
_GFX90A = Rules(
    write_back="buffer_wbl2",
    wait=_GFX9_WAIT,
    invalidates=("buffer_invl2", "buffer_wbinvl1_vol"),
    payload=frozenset({"glc", "slc"}),
    polled=frozenset({"glc"}),
)
_GFX1030 = Rules(
    write_back=None,
    wait=r"s_waitcnt_vscnt null, 0x0",
    invalidates=("buffer_gl1_inv", "buffer_gl0_inv"),
    payload=frozenset({"slc"}),
    polled=frozenset({"glc", "dlc"}),
)
RULES = {"gfx1030": _GFX1030, "gfx90a": _GFX90A, "gfx942": _GFX94, "gfx950": _GFX94}
ARCHITECTURES = tuple(RULES)


@dataclass
class Row:
    """One kernel on one architecture, the worst of its element types.

    Attributes:
        checks: name -> "pass", or what was found instead.
        vgprs, sgprs: registers of a lane and of a wave.
        lds: bytes of block-shared memory.
        lane_spills: scalar registers kept in a vector register's lanes; they cost no memory access.
    """

    kernel: str
    architecture: str
    compiler: str
    checks: dict[str, str] = field(default_factory=dict)
    vgprs: int = 0
    sgprs: int = 0
    lds: int = 0
    lane_spills: int = 0

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(found == "pass" for found in self.checks.values())


def functions(assembly: str) -> Iterator[tuple[str, list[str], dict[str, int]]]:
    """Yield (name, lines, the compiler's numbers) of every kernel; lines are instructions, labels and marks."""
    for match in re.finditer(r"^(\w+):\s+; @\1\n(.*?)^\.Lfunc_end", assembly, re.M | re.S):
        name, body = match.groups()
        lines = [line.strip() for line in body.splitlines()]
        keep = [line for line in lines if line.startswith("; lab ") or re.match(r"[a-z]+_\w+|\.LBB\w+:", line)]
        entry = re.search(rf"\.name:\s+{name}\n.*?(?=\n  - |\Z)", assembly, re.S)
        before = assembly.rfind("  - .a", 0, entry.start()) if entry else -1
        numbers = re.findall(r"\.(\w+):\s+(\d+)", assembly[before : entry.end()]) if entry else []
        yield name, keep, {key: int(value) for key, value in numbers}


_STORE = re.compile(r"(global|flat|buffer)_(store|atomic)_")
_LOAD = re.compile(r"(global|flat|buffer)_load_")


def check_release(code: Sequence[str], rules: Rules) -> str:
    """Every marked flag store, and every write-back at all, is followed by its wait before the next store."""
    marks = [i for i, line in enumerate(code) if line == "; lab flag store"]
    if not marks:
        return "no flag store found"
    for mark in marks:
        store = next((i for i in range(mark, len(code)) if _STORE.match(code[i])), None)
        if store is None:
            return "no store after the mark"
        before = range(store - 1, -1, -1)
        last = next((i for i in before if _STORE.match(code[i]) or code[i].startswith("s_barrier")), -1)
        window = code[last + 1 : store]
        if rules.write_back:
            written = [i for i, line in enumerate(window) if line.startswith(rules.write_back)]
            if not written:
                return f"flag store without {rules.write_back}: {code[store]}"
            window = window[written[-1] :]
        if not any(re.match(rules.wait, line) for line in window):
            return f"flag store can pass the {'write-back' if rules.write_back else 'stores'} before it: {code[store]}"
    for i, line in enumerate(code):
        if rules.write_back and line.startswith(rules.write_back):
            after = next((x for x in code[i + 1 :] if _STORE.match(x) or re.match(rules.wait, x)), "")
            if _STORE.match(after):
                return f"write-back not waited for: {after}"
    return "pass"


def check_drain(code: Sequence[str], rules: Rules) -> str:
    """Every wave waits for its own payload stores before the barrier in front of the flag."""
    barriers = [i for i, line in enumerate(code) if line.startswith("s_barrier")]
    for i, end in zip(barriers, [*barriers[1:], len(code)], strict=True):
        if "; lab flag store" not in code[i:end]:
            continue
        for before in reversed(code[:i]):  # within the barrier's basic block, so on every way to it
            if re.match(rules.wait, before):
                break
            if _STORE.match(before) or before.startswith((".LBB", "s_barrier")):
                return "barrier in front of a flag store without a wait for the wave's stores"
    return "pass"


def check_acquire(code: Sequence[str], rules: Rules) -> str:
    """Every acquire invalidates before the next load, and the wave that polled acquires before the next barrier."""
    marks = [i for i, line in enumerate(code) if line == "; lab acquire"]
    if not marks:
        return "no acquire found"
    for mark in marks:
        end = next((i for i in range(mark, len(code)) if _LOAD.match(code[i])), len(code))
        for needed in rules.invalidates:
            if not any(line.startswith(needed) for line in code[mark:end]):
                return f"load without {needed} after the flag: {code[end] if end < len(code) else 'end'}"
    for store in (i for i, line in enumerate(code) if line == "; lab flag store"):
        barrier = next((i for i in range(store, len(code)) if code[i].startswith("s_barrier")), len(code))
        if not any(store < mark < barrier for mark in marks):
            return "the wave that polls a flag does not acquire before the block barrier"
    return "pass"


def _bits(line: str) -> set[str]:
    return {word for word in re.split(r"[\s,]+", line) if word in ("sc0", "sc1", "nt", "glc", "slc", "dlc")}


def check_payload(code: Sequence[str], rules: Rules, polled: bool) -> str:
    """Payload goes past the caches, 16 bytes at a time; a polled payload carries the bits of a flag load."""
    wide = [line for line in code if "dwordx4" in line and _bits(line)]
    wrong = [line for line in wide if not _bits(line) >= rules.payload]
    if wrong:
        return f"lacks {' '.join(sorted(rules.payload))}: {wrong[0]}"
    if not any(_STORE.match(line) for line in wide):
        return "no 16-byte bypass store"
    if polled and rules.polled != rules.payload:  # two 8-byte loads: see load_polled_bypass
        loads = [line for line in code if "load_dwordx2" in line and _bits(line) >= rules.polled]
        return "pass" if len(loads) >= 2 else "no bypass load of polled payload"
    return "pass" if any(_LOAD.match(line) for line in wide) else "no 16-byte bypass load"


def check_wide(code: Sequence[str]) -> str:
    """The fast path reads the input and writes the output 16 bytes at a time."""
    plain = [line for line in code if "dwordx4" in line and not _bits(line) and not line.startswith(("s_", "scratch"))]
    for what, pattern in (("load", _LOAD), ("store", _STORE)):
        if not any(pattern.match(line) for line in plain):
            return f"no 16-byte {what} of the user's tensor"
    return "pass"


def check_poll(code: Sequence[str], rules: Rules, packets: bool, world: int) -> str:
    """Every waiting loop loads anew, past the caches, all that it waits for.

    A wait for a flag holds three loads: the flag, aborted_at, the flag again for a report. A wait for packets holds
    one per rank (the own one is skipped at run time) and one for a report.
    """
    width, needed = "dwordx2", 3
    if packets:
        wide = rules.polled == rules.payload
        width, needed = ("dwordx4", world + 1) if wide else ("dwordx2", 2 * (world + 1) + 1)
    labels = {line.split(":")[0]: i for i, line in enumerate(code) if line.startswith(".LBB")}
    loops = []
    for i, line in enumerate(code):
        start = labels.get(line.split()[-1], len(code)) if line.startswith(("s_cbranch", "s_branch")) else len(code)
        # A loop over the vectors of a message stores payload; a waiting loop does not.
        if start < i and not any("store_dwordx4" in body for body in code[start:i]):
            loops.append((start, i))
    sleeps = [i for i, line in enumerate(code) if line.startswith("s_sleep")]
    for sleep in sleeps:
        loads = [
            sum(bool(_LOAD.match(x)) and width in x and _bits(x) >= rules.polled for x in code[start:end])
            for start, end in loops
            if start < sleep < end
        ]
        if max(loads, default=0) < needed:
            return f"a waiting loop with {max(loads, default=0)} {width} loads of {needed}"
    return "pass" if sleeps else "no waiting loop found"


def check_spills(numbers: dict[str, int], code: Sequence[str]) -> str:
    """No register goes to memory."""
    if numbers["vgpr_spill_count"] or numbers["private_segment_fixed_size"]:
        return f"{numbers['vgpr_spill_count']} spills, {numbers['private_segment_fixed_size']} bytes of scratch"
    return "pass" if not any(line.startswith("scratch_") for line in code) else "scratch access"


def read(kernel: str, architecture: str, assembly: str, world: int, compiler: str = "") -> Row:
    """Check one kernel's assembly. `kernel` without flags (low_latency) is checked for its packets instead."""
    rules = RULES[architecture]
    row = Row(kernel, architecture, compiler)
    packets = kernel == "low_latency"
    found = list(functions(assembly))
    if not found:
        row.checks["code"] = "no kernel in the assembly"
    for name, code, numbers in found:
        checks = {"spills": check_spills(numbers, code)}
        checks["release"] = check_release(code, rules)  # low_latency's flag store is its record's last word
        if not packets:
            checks["drain"] = check_drain(code, rules)
            checks["acquire"] = check_acquire(code, rules)
        checks["poll"] = check_poll(code, rules, packets, world)
        checks["payload"] = check_payload(code, rules, packets)
        checks["16-byte"] = check_wide(code)
        for check, result in checks.items():
            if row.checks.get(check, "pass") == "pass":
                row.checks[check] = result if result == "pass" else f"{name}: {result}"
        row.vgprs = max(row.vgprs, numbers["vgpr_count"])
        row.sgprs = max(row.sgprs, numbers["sgpr_count"])
        row.lds = max(row.lds, numbers["group_segment_fixed_size"])
        row.lane_spills = max(row.lane_spills, numbers["sgpr_spill_count"])
    return row


def survey(
    *,
    world: int = 4,
    kernels: Sequence[str] = KERNELS,
    architectures: Sequence[str] = ARCHITECTURES,
    source: Path = HIP,
    cache: Path | None = None,
) -> list[Row]:
    """Compile each kernel for each architecture and check it.

    Raises:
        LabError: no compiler for AMD, an unknown name, or source that does not compile.
    """
    rows = []
    for kernel in kernels:
        for architecture in architectures:
            if architecture not in RULES:
                raise UnknownNameError("architecture", architecture, RULES)
            made = build(architecture, world=world, kernels=[kernel], output=".s", source=source, cache=cache)
            rows.append(read(kernel, architecture, made.path.read_text(), world, made.compiler))
    return rows
