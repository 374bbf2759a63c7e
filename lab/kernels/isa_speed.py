"""What the speed of a kernel needs of its machine code: loads in flight, few scalar trips, no spill while polling."""

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lab.kernels.isa_code import (
    LOAD,
    STORE,
    Block,
    awaits_scalar_loads,
    basic_blocks,
    cache_bits,
    is_spill,
    loads_awaited,
    loops,
    width,
)
from lab.kernels.isa_order import LOADS, LOADS_END
from lab.kernels.isa_rules import Rules

MOST_SCALAR_TRIPS = {
    "low_latency": 3,  # what it is made for is that its first packet leaves soon
    "add_rmsnorm": 6,  # the norm's arguments too, which gfx90a loads in one piece more
    "add_rmsnorm_two_stage": 8,  # many rows, whose places come from a division
}
MOST_SCALAR_TRIPS_ELSEWHERE = 5
MOST_DRAINS = 0.5
NEVER = 1 << 30


@dataclass(frozen=True)
class Measured:
    """Counts of one kernel, and what is wrong with the loads of a vector ("" where nothing is).

    Attributes:
        loads_in_flight: as in `Row`.
        short: the first place with fewer loads in flight than its mark asks for.
        scalar_trips: as in `Row`; NEVER when no push was found.
        poll_spills: as in `Row`.
        drains: as in `Row`.
    """

    loads_in_flight: int
    short: str
    scalar_trips: int
    poll_spills: int
    drains: float


def measure(code: Sequence[str], rules: Rules) -> Measured:
    """Count what `checks` judges."""
    blocks = basic_blocks(code)
    fewest, short, worst = NEVER, "", 0.0
    for i, line in enumerate(code):
        if not line.startswith(LOADS) or line == LOADS_END:
            continue
        wanted, found = int(line.removeprefix(LOADS)), loads_behind(code[i + 1 :], rules)
        loop = loop_behind(code, i)
        if loop:
            found, worst = min(found, loads_behind([*loop, *loop], rules)), max(worst, drains(loop, wanted, rules))
        fewest = min(fewest, found)
        if found < wanted and not short:
            short = f"{found} loads in flight of {wanted}"
    return Measured(fewest, short, scalar_trips(blocks, rules), poll_spills(blocks), worst)


def checks(kernel: str, measured: Measured) -> dict[str, str]:
    """The verdict on each count."""
    flight = measured.short or ("pass" if measured.loads_in_flight < NEVER else "no loads of a vector found")
    trips, most = measured.scalar_trips, MOST_SCALAR_TRIPS.get(kernel, MOST_SCALAR_TRIPS_ELSEWHERE)
    scalar = "pass" if trips <= most else f"{trips} waits for scalar loads before the first push, {most} will do"
    if trips == NEVER:
        scalar = "no push or pull found"
    polls = "pass" if not measured.poll_spills else f"{measured.poll_spills} spills between two polls"
    waits = f"{measured.drains:g} waits for all stores to peers, each vector"
    waits = "pass" if measured.drains <= MOST_DRAINS else waits
    return {"flight": flight, "scalar": scalar, "poll spills": polls, "drains": waits}


def loads_behind(code: Sequence[str], rules: Rules) -> int:
    """The 16-byte loads from the first one on that are issued before one of them is waited for, or the block ends.

    Two 8-byte loads of a polled payload count as one.
    """
    issued, halves = 0, 0
    for line in code:
        allowed = loads_awaited(line)
        waited = allowed is not None and issued and allowed < issued
        ends = line.startswith((".LBB", "s_cbranch", "s_branch", "s_endpgm", "s_barrier"))
        if waited or (ends and issued):
            break
        if LOAD.match(line) and width(line) in (8, 16):
            issued += 1
            halves += 2 if width(line) == 16 else int(cache_bits(line) >= rules.polled)
    return halves // 2


def loop_behind(code: Sequence[str], mark: int) -> Sequence[str]:
    """The loop over vectors behind a mark, which loads and stores them; nothing where there is none up to its end."""
    end = next((i for i in range(mark + 1, len(code)) if code[i].startswith(LOADS)), len(code))
    for loop in loops(code):
        body = code[loop.start : loop.end]
        wide = [line for line in body if width(line) == 16]
        moves = any(map(LOAD.match, wide)) and any(map(STORE.match, wide))
        if mark < loop.start < end and moves and not any(line.startswith("s_sleep") for line in body):
            return body
    return ()


def drains(loop: Sequence[str], loads: int, rules: Rules) -> float:
    """Waits that leave no store to a peer in flight, in a loop over vectors of so many loads each, for each vector.

    Where loads and stores share a counter, in order, a wait for a load is one for every store ahead of it. The loop is
    followed for two rounds, of which the second counts. One store for each vector is not counted: there is no second
    one to go on while it is waited for.
    """
    vectors = max(sum(bool(LOAD.match(line)) and width(line) == 16 for line in loop) // loads, 1)
    pushes = sum(bool(STORE.match(line)) and cache_bits(line) >= rules.payload for line in loop)
    if pushes <= vectors:
        return 0.0
    if rules.stores_apart:
        return sum(bool(re.match(rules.wait, line)) for line in loop) / vectors
    under_way: list[bool] = []  # whether each operation is a store to a peer, oldest first
    found = 0
    for turn in range(2):
        for line in loop:
            allowed = loads_awaited(line)
            if allowed is not None:
                done = under_way[: max(len(under_way) - allowed, 0)]
                under_way = under_way[len(done) :]
                found += turn and any(done) and not any(under_way)
            elif LOAD.match(line) or STORE.match(line):
                under_way.append(bool(STORE.match(line)) and cache_bits(line) >= rules.payload)
    return found / vectors


def scalar_trips(blocks: Sequence[Block], rules: Rules) -> int:
    """Waits for scalar loads from the entry to the nearest push or pull, on the way with fewest; NEVER without one."""
    best: dict[tuple[int, bool], int] = {}
    heap = [(0, 0, False)]
    while heap:
        trips, at, pending = heapq.heappop(heap)
        if best.get((at, pending), NEVER) <= trips:
            continue
        best[at, pending] = trips
        for line in blocks[at].lines:
            if width(line) == 16 and cache_bits(line) >= rules.payload:
                return trips
            if line.startswith("s_load"):
                pending = True
            elif pending and awaits_scalar_loads(line):
                trips, pending = trips + 1, False
        for after in blocks[at].after:
            heapq.heappush(heap, (trips, after, pending))
    return NEVER


def poll_spills(blocks: Sequence[Block]) -> int:
    """Spills from a failed poll to the next one, on the way with the fewest, of the wait where that is most."""
    sleeping = [k for k, block in enumerate(blocks) if any(line.startswith("s_sleep") for line in block.lines)]
    return max((_around(blocks, k) for k in sleeping), default=0)


def _around(blocks: Sequence[Block], home: int) -> int:
    """The fewest spills on a way from a block back to itself; 0 when there is none."""
    spills = [sum(map(is_spill, block.lines)) for block in blocks]
    best: dict[int, int] = {}
    heap = [(spills[home], after) for after in blocks[home].after]
    heapq.heapify(heap)
    while heap:
        found, at = heapq.heappop(heap)
        if at == home:
            return found
        if best.get(at, NEVER) <= found:
            continue
        best[at] = found
        for after in blocks[at].after:
            heapq.heappush(heap, (found + spills[at], after))
    return 0
