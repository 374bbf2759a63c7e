"""Errors that a user can mend: what was wrong, with which value, and what to do about it."""

import copyreg
from collections.abc import Iterable
from difflib import get_close_matches

_LISTED = 12  # a table of names this short is shown whole


class LabError(Exception):
    """Something that the user asked for cannot be done.

    Raise it anywhere in the library; the `lab` command prints it as one message and exits with 2.

    Attributes:
        what: what is wrong, in one sentence without the value ("world is out of range").
        value: the offending value, shown as Python would write it; None when there is none to show.
        hint: what the user can do ("use 2 to 8 ranks").
    """

    def __init__(self, what: str, *, value: object = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between processes, and subclasses take other arguments than an Exception remembers.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def summary(self) -> str:
        """What is wrong, with the value."""
        return self.what + ("" if self.value is None else f": {self.value!r}")

    def __str__(self) -> str:
        return self.summary + (f"\n  {self.hint}" if self.hint else "")


class UnknownNameError(LabError):
    """A name that is not in a table of names; the hint gives the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        known = list(known)
        self.nearest = nearest(name, known)
        between = "; "
        guess = None
        if self.nearest:
            between, guess = " ", f"did you mean {' or '.join(self.nearest)}?"
        elif len(known) == 1:
            guess = f"the only one is {known[0]}"
        elif 1 < len(known) <= _LISTED:
            guess = f"it is one of {', '.join(known)}"
        super().__init__(f"unknown {kind}", value=name, hint=between.join(filter(None, (guess, hint))) or None)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the `known` names that look like `name`, best first."""
    by_folded = {entry.casefold(): entry for entry in known}
    return [by_folded[match] for match in get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.5)]
