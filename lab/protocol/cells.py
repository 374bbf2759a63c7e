"""Cells: payload cut into maximal runs of elements that every operation of a program treats alike.

Boundaries come from the chunks of each thread-to-element mapping and from the ends of spans, and are carried through
every copy until source and destination cells correspond one to one. One cell then holds one value, whatever its length.
"""

from __future__ import annotations

import numpy as np

from lab.protocol.errors import ProtocolError
from lab.protocol.expr import MASK, Const, Expr, enumerate_index
from lab.protocol.program import CONSTANT, Expect, Fill, Mapping, Move, Op, Program, Region, Span, WaitStamp

_MIX = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        x = x + _MIX
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def leaf(source: tuple[int, int] | None, elements: np.ndarray, constant: bool, region: int = 0) -> np.ndarray:
    """Fingerprints (uint64) of the input elements of (rank, version), or of poison in `region` where source is None.

    `(CONSTANT, value)` are elements that all have a value, wherever they are.
    """
    if source is not None and source[0] == CONSTANT:
        constant, key = True, (source[1] & MASK) << 8 | 3
    else:
        key = (source[0] << 40 | source[1] << 8 | 1) if source is not None else (region << 8 | 2)
    place = np.zeros(len(elements), np.uint64) if constant else elements.astype(np.uint64)
    return _mix(_mix(np.full(len(elements), key, np.uint64)) ^ place)


def spans_of(op: Op) -> tuple[tuple[Span, ...], Mapping] | None:
    """The spans that a payload operation handles, the one that it writes first, and its mapping; None: it is none."""
    if isinstance(op, Move):
        return (op.dst, *op.sources), op.mapping
    if isinstance(op, Fill):
        return (op.dst,), op.mapping
    if isinstance(op, (Expect, WaitStamp)):
        return (op.span,), op.mapping
    return None


def variants(op: Op, *exprs: Expr) -> tuple[Expr, list[list[int]]]:
    """`enumerate_index` of what an operation is indexed by.

    Raises:
        ProtocolError: An index depends on a register that nothing bounds.
    """
    try:
        return enumerate_index(*exprs)
    except ValueError as problem:
        raise ProtocolError(str(problem), site=op.site) from None


def count_of(op: Op) -> Expr:
    """How many elements of its spans a payload operation handles."""
    found = spans_of(op)
    assert found is not None
    count = getattr(op, "count", None)
    return Const(found[0][0].length) if count is None else count


MAXIMUM = np.uint64(0x6A09E667F3BCC909)
"""Added once for each two values of which the maximum is taken: it adds up alike however they are grouped."""


class Cells:
    """The cells of a program, and the lists of them that its operations handle.

    Attributes:
        arrays: The arrays of `Tables` that describe cells, by name.
        items, iterations: Parts of the arrays of that name.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.items: list[np.ndarray] = []
        self.iterations: list[np.ndarray] = []
        self._items = 0
        self._shares: dict[tuple[object, ...], tuple[int, np.ndarray]] = {}
        self._cut()

    def _starts(self, span: Span, op: Op) -> list[int]:
        _, (starts,) = variants(op, span.start)
        for start in starts:
            if not 0 <= start <= span.region.length - span.length:
                raise ProtocolError(
                    f"{span.label} lies outside {span.region.name}, which has {span.region.length} elements",
                    value=f"elements {start}..{start + span.length - 1}",
                    site=op.site,
                )
        return starts

    def _counts(self, spans: tuple[Span, ...], op: Op) -> list[int]:
        """How many elements an operation may handle."""
        _, (counts,) = variants(op, count_of(op))
        for count in counts:
            if count > spans[0].length:
                raise ProtocolError(
                    f"{spans[0].label} has {spans[0].length} elements", value=f"count {count}", site=op.site
                )
        return sorted(set(counts))

    def _cut(self) -> None:
        """Find the cells: boundaries of all chunks, carried through all copies to a fixed point."""
        program = self.program
        payload = [region for region in program.regions if region.kind == "payload"]
        bounds: dict[object, np.ndarray] = {r.id: np.array([0, r.length], np.int64) for r in payload}
        chunks: dict[tuple[int, int, int, int, int, int], None] = {}
        links: dict[tuple[object, int, object, int, int], None] = {}
        for region in payload:
            if region.source is not None and not region.constant:
                links[region.id, 0, ("version", region.source[1]), 0, region.length] = None
        for agent in program.agents:
            for op in agent.ops:
                found = spans_of(op)
                if found is None:
                    continue
                spans, mapping = found
                starts = [self._starts(span, op) for span in spans]
                for length in self._counts(spans, op):
                    whole = mapping.vectored(length)
                    for span, first in zip(spans, starts, strict=True):
                        for start in first:
                            chunks[span.region.id, start, length, whole, mapping.threads, mapping.vector] = None
                    for other, second in zip(spans[1:], starts[1:], strict=True):
                        for a in starts[0]:
                            for b in second:
                                links[spans[0].region.id, a, other.region.id, b, length] = None
                element = op.first if isinstance(op, Expect) else 0
                for version in _versions(op):
                    links[spans[0].region.id, starts[0][0], ("version", version), element, spans[0].length] = None
        cuts: dict[object, list[np.ndarray]] = {key: [value] for key, value in bounds.items()}
        for region_id, start, length, whole, threads, vector in chunks:
            cuts[region_id].append(_chunk_bounds(start, length, whole, threads, vector))
        bounds = {key: _sorted_unique(np.concatenate(parts)) for key, parts in cuts.items()}
        for key in {key for link in links for key in (link[0], link[2])} - bounds.keys():
            bounds[key] = np.zeros(0, np.int64)
        _carry(bounds, list(links))
        self._number(payload, bounds)

    def _number(self, payload: list[Region], bounds: dict[object, np.ndarray]) -> None:
        self.bounds = bounds
        self.cell_base = np.full(len(self.program.regions), -1, np.int64)
        region_of, starts, lengths, ranks, initial = [], [], [], [], []
        total = 0
        for region in payload:
            cut = bounds[region.id]
            count = len(cut) - 1
            self.cell_base[region.id] = total
            total += count
            region_of.append(np.full(count, region.id, np.int32))
            starts.append(cut[:-1])
            lengths.append(np.diff(cut))
            ranks.append(np.full(count, region.rank, np.int8))
            initial.append(leaf(region.source, cut[:-1], region.constant, region.id))
        self.arrays = {
            "cell_region": joined(region_of, np.int32),
            "cell_start": joined(starts, np.int64),
            "cell_length": joined(lengths, np.int64),
            "cell_rank": joined(ranks, np.int8),
            "cell_initial": joined(initial, np.uint64),
            "cell_base": self.cell_base,
        }

    def share(self, span: Span, start: int, length: int, mapping: Mapping) -> tuple[int, np.ndarray]:
        """One agent's share of `length` elements of a span: where it is in `items` and `iterations`, and the cells."""
        key = (span.region.id, start, length, mapping)
        if key not in self._shares:
            self._shares[key] = self._new_share(span, start, length, mapping)
        return self._shares[key]

    def _new_share(self, span: Span, start: int, length: int, mapping: Mapping) -> tuple[int, np.ndarray]:
        chunks = _chunk_table(mapping, length)
        bounds = self.bounds[span.region.id]
        first = np.searchsorted(bounds, chunks[:, 1] + start)
        counts = np.searchsorted(bounds, chunks[:, 2] + start) - first
        cells = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        cells = (cells + self.cell_base[span.region.id]).astype(np.int32)
        found = (self._items, cells)
        self.items.append(cells)
        self.iterations.append(np.repeat(chunks[:, 0], counts).astype(np.int32))
        self._items += len(cells)
        return found


def _versions(op: Op) -> list[int]:
    """The versions of inputs that an operation writes or expects element by element."""
    if not isinstance(op, (Fill, Expect)) or op.constant:
        return []
    sources = op.due if isinstance(op, Expect) else (op.source,)
    return sorted({source[1] for source in sources if source is not None and source[0] != CONSTANT})


def _chunk_bounds(start: int, length: int, whole: int, threads: int, vector: int) -> np.ndarray:
    vectors = np.arange(0, whole, threads * vector, dtype=np.int64)
    tail = np.arange(whole, length, threads, dtype=np.int64)
    return start + np.concatenate((vectors, tail, np.array([0, length], np.int64)))


def _chunk_table(mapping: Mapping, length: int) -> np.ndarray:
    """`Mapping.chunks` as an array of (iteration, lo, hi)."""
    whole = mapping.vectored(length)
    lo = np.arange(mapping.first * mapping.vector, whole, mapping.grid * mapping.vector, dtype=np.int64)
    hi = np.minimum(lo + mapping.threads * mapping.vector, whole)
    tail_lo, tail_hi = whole + mapping.first, min(whole + mapping.first + mapping.threads, length)
    if tail_lo < tail_hi:
        lo, hi = np.append(lo, tail_lo), np.append(hi, tail_hi)
    return np.stack((np.arange(len(lo)), lo, hi), axis=1)


def _carry(bounds: dict[object, np.ndarray], links: list[tuple[object, int, object, int, int]]) -> None:
    """Carry boundaries through `links` (region, start, region, start, length), in place, until nothing changes."""
    touching: dict[object, list[int]] = {}
    for index, (a, _, b, _, _) in enumerate(links):
        touching.setdefault(a, []).append(index)
        touching.setdefault(b, []).append(index)
    dirty = dict.fromkeys(range(len(links)))
    while dirty:
        index = next(iter(dirty))
        del dirty[index]
        a, start_a, b, start_b, length = links[index]
        for source, at, dst, to in ((a, start_a, b, start_b), (b, start_b, a, start_a)):
            cut = bounds[source]
            inside = cut[np.searchsorted(cut, at) : np.searchsorted(cut, at + length, "right")] - at + to
            known = bounds[dst]
            if not _contains(known, inside):
                bounds[dst] = _sorted_unique(np.concatenate((known, inside)))
                dirty.update(dict.fromkeys(i for i in touching[dst] if i != index))
                if dst == source:
                    dirty[index] = None


def _contains(known: np.ndarray, values: np.ndarray) -> bool:
    """Whether every one of `values` is in the sorted array `known`."""
    if not len(values) or not len(known):
        return not len(values)
    return bool(np.array_equal(known[np.searchsorted(known[:-1], values)], values))


def _sorted_unique(values: np.ndarray) -> np.ndarray:
    """`np.unique` by sorting: several times faster on runs that are already sorted."""
    values = np.sort(values, kind="stable")
    keep = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """The parts one after the other; of no parts, an empty array."""
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
