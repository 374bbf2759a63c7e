"""Addresses: how a protocol names slots, flags and counters, and where they lie in a region.

A region may have named leading dimensions. Indexing it gives a slot (payload) or a word, whose label the verdicts
repeat: `staging[p, 1]` of a region declared with `parity=2, source=4` is "staging[parity p, source 1]". Slicing a slot
gives a part of it. Elements are laid out row-major, as in the kernels, so that indices computed from sizes may alias as
they do there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.expr import Const, Expr, word
from lab.protocol.program import Region, Span, WordRef


@dataclass(frozen=True)
class Buffer:
    """A region as protocol text sees it: index it for a slot or a word, slice it for elements."""

    region: Region

    @property
    def elements(self) -> int:
        """Elements (or words) in the whole region."""
        return self.region.length

    def __getitem__(self, index: object) -> Any:
        """The slot at `index` (payload, a `View`), the word at `index` (words, a `WordRef`), or a slice's elements."""
        if isinstance(index, slice) and self.region.kind == "words":
            raise ProtocolError(
                f"words of {self.region.name} are named one by one",
                value=index,
                site=user_site(),
                hint="`words(first, count)` are several, for a wait on their sum; `wait_any` takes a list",
            )
        if isinstance(index, slice):
            return self.whole[index]
        indices = index if isinstance(index, tuple) else (index,)
        extents = self._extents()
        if len(indices) != len(extents):
            names = ", ".join(name for name, _ in extents)
            raise ProtocolError(f"{self.region.name} takes the indices ({names})", value=indices, site=user_site())
        flat: Expr = Const(0)
        labels = []
        for value, (name, extent) in zip(indices, extents, strict=True):
            _check_index(self.region, name, value, extent)
            flat = flat * extent + word(value)
            labels.append(f"{name} {value}" if name else str(value))
        label = f"{self.region.name}[{', '.join(labels)}]"
        if self.region.kind == "words":
            return WordRef(self.region, flat, label)
        length = self.region.length
        for _, extent in extents:
            length //= extent
        return View(Span(self.region, flat * length, length, label))

    @property
    def whole(self) -> View:
        """All elements of a payload region."""
        return View(Span(self.region, Const(0), self.region.length, self.region.name))

    @property
    def word(self) -> WordRef:
        """The single word of a one-word region."""
        if self.region.kind != "words" or self.region.length != 1:
            raise ProtocolError(f"{self.region.name} is not a single word", site=user_site())
        return WordRef(self.region, Const(0), self.region.name)

    def words(self, first: int, count: int) -> WordRef:
        """`count` consecutive words, for a wait on their sum."""
        if self.region.kind != "words":
            raise ProtocolError(f"{self.region.name} has no words, it is payload", site=user_site())
        if not all(isinstance(number, int) for number in (first, count)):
            raise ProtocolError(
                f"words of {self.region.name} are counted in whole numbers", value=(first, count), site=user_site()
            )
        if not 0 <= first < first + count <= self.region.length:
            raise ProtocolError(
                f"words {first}..{first + count - 1} do not exist in {self.region.name}",
                value=self.region.length,
                site=user_site(),
            )
        return WordRef(self.region, Const(first), f"{self.region.name}[{first}:{first + count}]", count)

    def _extents(self) -> tuple[tuple[str, int], ...]:
        if self.region.shape or self.region.kind == "payload":
            return self.region.shape
        return (("", self.region.length),)


@dataclass(frozen=True)
class View:
    """A span that can be sliced: `slot[:n]`, `output[lo:hi]`."""

    span: Span

    @property
    def elements(self) -> int:
        """Its length in elements."""
        return self.span.length

    def __getitem__(self, part: slice) -> View:
        """Elements `part` of this view, counted from its start; the bounds must lie inside it."""
        if not isinstance(part, slice):
            raise ProtocolError(
                f"a part of {self.span.label} is a slice of its elements",
                value=part,
                site=user_site(),
                hint="write [lo:hi]; of a region with dimensions, name all of them in one pair of brackets",
            )
        for bound in (part.start, part.stop):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise ProtocolError(
                    f"the bounds of a part of {self.span.label} are whole numbers", value=bound, site=user_site()
                )
        lo = 0 if part.start is None else part.start
        hi = self.span.length if part.stop is None else part.stop
        if part.step is not None:
            raise ProtocolError(f"a part of {self.span.label} has no step", value=part.step, site=user_site())
        if not 0 <= lo <= hi <= self.span.length:
            raise ProtocolError(
                f"elements [{lo}, {hi}) do not exist in {self.span.label}",
                value=f"{self.span.length} elements",
                site=user_site(),
            )
        label = self.span.label if (lo, hi) == (0, self.span.length) else f"{self.span.label}[{lo}:{hi}]"
        return View(Span(self.span.region, self.span.start + lo, hi - lo, label))


def _check_index(region: Region, name: str, value: object, extent: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, Expr)):
        raise ProtocolError(
            f"{name or 'index'} of {region.name} is a whole number or a register", value=value, site=user_site()
        )
    if isinstance(value, int) and not 0 <= value < extent:
        raise ProtocolError(
            f"{name or 'index'} of {region.name} is out of range 0..{extent - 1}", value=value, site=user_site()
        )
