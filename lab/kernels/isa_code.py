"""AMD assembly as lines of instructions, labels and marks, and what a line is, whatever the generation calls it."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

STORE = re.compile(r"(global|flat|buffer)_(store|atomic)_")
LOAD = re.compile(r"(global|flat|buffer)_load_")
_CACHE_BITS = {bit: bit for bit in ("sc0", "sc1", "nt", "glc", "slc", "dlc", "scope:SCOPE_SYS")}
_CACHE_BITS |= {"th:TH_LOAD_NT": "nt", "th:TH_STORE_NT": "nt"}


def functions(assembly: str) -> Iterator[tuple[str, list[str], dict[str, int]]]:
    """Yield (name, lines, the compiler's numbers) of every kernel; lines are instructions, labels and marks.

    The numbers are those of the kernel's metadata and of its descriptor (`amdhsa_...`). Of a barrier that is split in
    two, the line that waits is left out: what has to come before it has to come before the signal.
    """
    for match in re.finditer(r"^(\w+):\s+; @\1\n(.*?)^\.Lfunc_end", assembly, re.M | re.S):
        name, body = match.groups()
        lines = [line.strip() for line in body.splitlines()]
        keep = [line for line in lines if line.startswith("; lab ") or re.match(r"[a-z]+_\w+|\.LBB\w+:", line)]
        keep = [line for line in keep if not line.startswith("s_barrier_wait")]
        entry = re.search(rf"\.name:\s+{name}\n.*?(?=\n  - |\Z)", assembly, re.S)
        before = assembly.rfind("  - .a", 0, entry.start()) if entry else -1
        numbers = re.findall(r"\.(\w+):\s+(\d+)", assembly[before : entry.end()]) if entry else []
        descriptor = re.search(rf"\.amdhsa_kernel {name}\n(.*?)\.end_amdhsa_kernel", assembly, re.S)
        if descriptor:
            numbers += re.findall(r"\.(amdhsa_\w+) (\d+)\n", descriptor.group(1))
        yield name, keep, {key: int(value) for key, value in numbers}


def width(line: str) -> int:
    """Bytes that a vector-memory instruction moves; 0 when it says no such thing."""
    named = re.search(
        r"_(dwordx4|dwordx3|dwordx2|dword|ushort|sshort|short|ubyte|sbyte|byte|[bui](?:128|96|64|32|16|8))\b", line
    )
    if not named:
        short = re.search(r"_(?:d16|short_d16|d16_hi|short_d16_hi|d16_b16|d16_hi_b16)\b", line)
        return 2 if short else 0
    sizes = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "sshort": 2, "short": 2}
    word = named.group(1)
    return sizes.get(word) or (1 if word.endswith("byte") else int(word[1:]) // 8)


def cache_bits(line: str) -> set[str]:
    """How an access treats the caches."""
    return {_CACHE_BITS[word] for word in re.split(r"[\s,]+", line) if word in _CACHE_BITS}


def loads_awaited(line: str) -> int | None:
    """How many vector-memory operations may still be under way behind this wait; None when it waits for none."""
    if found := re.match(r"s_wait_loadcnt(?:_dscnt)? 0x([0-9a-f]+)", line):
        return int(found.group(1), 16)
    if line.startswith("s_waitcnt ") and (found := re.search(r"vmcnt\((\d+)\)", line)):
        return int(found.group(1))
    return None


def awaits_scalar_loads(line: str) -> bool:
    """Whether the line waits for scalar loads."""
    return line.startswith("s_wait_kmcnt") or (line.startswith("s_waitcnt ") and "lgkmcnt(0)" in line)


def is_spill(line: str) -> bool:
    """Whether the line keeps a register elsewhere or brings it back."""
    return line.startswith(("v_writelane_", "v_readlane_", "scratch_"))


@dataclass(frozen=True)
class Loop:
    """Lines [start, end) from a label to the last branch back to it."""

    start: int
    end: int


def loops(code: Sequence[str]) -> list[Loop]:
    """Every label that a later line branches back to."""
    labels = {line.split(":")[0]: i for i, line in enumerate(code) if line.startswith(".LBB")}
    ends: dict[int, int] = {}
    for i, line in enumerate(code):
        if line.startswith(("s_cbranch", "s_branch")):
            start = labels.get(line.split()[-1], len(code))
            if start < i:
                ends[start] = i + 1
    return [Loop(start, end) for start, end in sorted(ends.items())]


@dataclass(frozen=True)
class Block:
    """A basic block: its lines and the blocks that may follow."""

    lines: tuple[str, ...]
    after: tuple[int, ...]


def lines_behind(code: Sequence[str], line: int) -> Iterator[str]:
    """The lines that may be executed behind `line`."""
    blocks = basic_blocks(code)
    starts = [0, *accumulate(len(block.lines) for block in blocks)]
    here = bisect_right(starts, line) - 1
    yield from code[line + 1 : starts[here + 1]]
    seen: set[int] = set()
    left = list(blocks[here].after)
    while left:
        block = left.pop()
        if block not in seen:
            seen.add(block)
            yield from blocks[block].lines
            left += blocks[block].after


def basic_blocks(code: Sequence[str]) -> list[Block]:
    """The function's basic blocks in the order of its text; the first is the entry."""
    starts = [0]
    for i, line in enumerate(code):
        ends = line.startswith(("s_cbranch", "s_branch", "s_endpgm", "s_setpc"))
        if line.startswith(".LBB") and i not in starts:
            starts.append(i)
        if ends and i + 1 < len(code):
            starts.append(i + 1)
    starts = sorted(set(starts))
    at = {code[start].split(":")[0]: k for k, start in enumerate(starts) if code[start].startswith(".LBB")}
    blocks = []
    for k, (start, end) in enumerate(zip(starts, [*starts[1:], len(code)], strict=True)):
        last = code[end - 1]
        after = []
        if last.startswith(("s_cbranch", "s_branch")):
            after.append(at[last.split()[-1]])
        if not last.startswith(("s_branch", "s_endpgm", "s_setpc")) and k + 1 < len(starts):
            after.append(k + 1)
        blocks.append(Block(tuple(code[start:end]), tuple(after)))
    return blocks
