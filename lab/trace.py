"""`Trace`: when each block of each rank was in which phase of which call; one schema for simulated and recorded runs.

    trace = Trace.load("experiments/.../two_shot.npz")
    trace.spans["end"] - trace.spans["begin"]  # nanoseconds

Times are nanoseconds of the rank's own clock. Clocks of different ranks may be offset against each other:
`lab.alignment.align` bounds offsets and rates from what must have come before what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from lab.errors import LabError

SPAN = np.dtype([("rank", "u1"), ("call", "u4"), ("block", "u2"), ("phase", "u1"), ("begin", "f8"), ("end", "f8")])
SOURCES = ("simulated", "recorded")
_FORMAT = 1


@dataclass(frozen=True)
class Trace:
    """Phases of calls.

    Attributes:
        spans: SPAN array (n,), sorted by rank, call, block and begin. `phase` indexes `phases`.
        phases: Phase names in the order of the kernel.
        source: "simulated" or "recorded".
        machine: What it ran on, or the preset that it was simulated with.
        about: What else a reader wants to know: algorithm, bytes, dtype, world, blocks, threads, date, command.
    """

    spans: np.ndarray
    phases: tuple[str, ...]
    source: str
    machine: str
    about: Mapping[str, object]

    def __post_init__(self) -> None:
        if self.spans.dtype != SPAN or self.spans.ndim != 1:
            raise LabError("spans of a trace have another type", value=f"{self.spans.dtype} {self.spans.shape}")
        if self.source not in SOURCES:
            raise LabError("source of a trace", value=self.source, hint=f"it is one of {', '.join(SOURCES)}")
        if len(self.spans) and int(self.spans["phase"].max()) >= len(self.phases):
            raise LabError("a span has a phase without a name", value=int(self.spans["phase"].max()))
        begin, end = self.spans["begin"], self.spans["end"]
        if not np.all(np.isfinite(begin) & np.isfinite(end) & (begin <= end)):
            raise LabError("a span of the trace ends before it begins")

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[int, int, int, str, float, float]],
        *,
        source: str,
        machine: str,
        about: Mapping[str, object] | None = None,
    ) -> Trace:
        """Make a trace of (rank, call, block, phase, begin ns, end ns); phases keep the order in which they come.

        Raises:
            LabError: A span ends before it begins, a rank, call or block does not fit SPAN, or `source` is not one of
                SOURCES.
        """
        names: dict[str, int] = {}
        listed = [
            (rank, call, block, names.setdefault(phase, len(names)), begin, end)
            for rank, call, block, phase, begin, end in rows
        ]
        try:
            spans = np.array(listed, SPAN)
        except (OverflowError, ValueError, TypeError) as problem:
            raise LabError(
                "a span of the trace does not fit",
                value=str(problem),
                hint="ranks 0 to 255, calls 0 to 2**32 - 1, blocks 0 to 65535, at most 256 phases; times are numbers",
            ) from problem
        spans = spans[np.lexsort((spans["begin"], spans["block"], spans["call"], spans["rank"]))]
        return cls(spans, tuple(names), source, machine, dict(about or {}))

    @property
    def ranks(self) -> list[int]:
        """Ranks that appear."""
        return [int(rank) for rank in np.unique(self.spans["rank"])]

    def of_phase(self, name: str) -> np.ndarray:
        """The spans of one phase.

        Raises:
            LabError: There is no phase of that name.
        """
        if name not in self.phases:
            raise LabError("the trace has no such phase", value=name, hint=f"it has {', '.join(self.phases)}")
        return self.spans[self.spans["phase"] == self.phases.index(name)]

    def shifted(self, offsets: Mapping[int, float]) -> Trace:
        """The same trace with `offsets[rank]` nanoseconds added to the clock of each rank that is named."""
        return self.on_clocks({rank: partial(np.add, offset) for rank, offset in offsets.items()})

    def on_clocks(self, clocks: Mapping[int, Callable[[np.ndarray], np.ndarray]]) -> Trace:
        """The same trace with `clocks[rank]` of the times, float64 (n,) in ns, of each rank that is named."""
        spans = self.spans.copy()
        for rank, clock in clocks.items():
            here = spans["rank"] == rank
            for side in ("begin", "end"):
                spans[side][here] = clock(spans[side][here])
        return Trace(spans, self.phases, self.source, self.machine, self.about)

    def save(self, path: str | Path) -> None:
        """Write it as `.npz` (spans and a JSON head), `.parquet`, or `.json` for Perfetto and chrome://tracing.

        Raises:
            LabError: The ending is none of these, `.parquet` is asked for without pyarrow, `about` holds what JSON does
                not, or the file cannot be written.
        """
        target = Path(path)
        write = {".npz": self._save_npz, ".parquet": self._save_parquet, ".json": self._save_json}.get(target.suffix)
        if write is None:
            raise LabError("a trace is not written in this form", value=target.name, hint="use .npz, .parquet or .json")
        try:
            head = json.dumps(self._head())
        except (TypeError, ValueError) as problem:
            raise LabError("`about` of the trace holds what JSON does not", value=str(problem)) from problem
        try:
            write(target, head)
        except OSError as problem:
            raise LabError("the trace cannot be written", value=str(target), hint=problem.strerror) from problem

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote; which form it has is seen from its content, not from its name.

        Raises:
            LabError: There is no such file, or it holds no trace, or one of another version.
        """
        source = Path(path)
        if not source.exists():
            raise LabError("there is no such trace", value=str(source))
        if source.is_dir():
            raise LabError("this is a folder, not a trace", value=str(source), hint="name a file in it")
        try:
            spans, head = _read(source)
            if head["format"] != _FORMAT:
                raise LabError("this trace has another format", value=head["format"], hint=f"format {_FORMAT} is read")
            phases, about = tuple(map(str, head["phases"])), dict(head["about"])
            return cls(spans, phases, str(head["source"]), str(head["machine"]), about)
        except LabError as problem:
            raise LabError(f"{problem.what} ({source})", value=problem.value, hint=problem.hint) from problem
        except Exception as problem:
            # The decoders of three formats raise dozens of types on damaged bytes, and what they say is for
            # programmers. Only the system's own word helps.
            why = problem.strerror if isinstance(problem, OSError) else None
            raise LabError(
                "this file holds no trace of the lab",
                value=str(source),
                hint=why or "it is damaged, or something else than what `Trace.save` writes",
            ) from problem

    def perfetto(self) -> dict[str, object]:
        """The trace in Chrome's trace event format, which Perfetto reads: a process a rank, a thread a block."""
        first = float(self.spans["begin"].min()) if len(self.spans) else 0.0
        names = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}} for rank in self.ranks
        ]
        events = [
            {
                "ph": "X",
                "name": self.phases[int(span["phase"])],
                "cat": self.source,
                "pid": int(span["rank"]),
                "tid": int(span["block"]),
                "ts": (float(span["begin"]) - first) / 1e3,
                "dur": (float(span["end"]) - float(span["begin"])) / 1e3,
                "args": {
                    "call": int(span["call"]),
                    "begin_ns": float(span["begin"]),
                    "end_ns": float(span["end"]),
                },
            }
            for span in self.spans
        ]
        return {"traceEvents": names + events, "displayTimeUnit": "ns", "otherData": self._head()}

    def _head(self) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "phases": list(self.phases),
            "source": self.source,
            "machine": self.machine,
            "about": dict(self.about),
        }

    def _save_npz(self, target: Path, head: str) -> None:
        np.savez_compressed(target, spans=self.spans, head=np.array(head))

    def _save_json(self, target: Path, head: str) -> None:
        target.write_text(json.dumps(self.perfetto()), encoding="utf-8")

    def _save_parquet(self, target: Path, head: str) -> None:
        pa, pq = _pyarrow("or save as .npz")
        table = pa.table({name: self.spans[name] for name in SPAN.names})
        pq.write_table(table.replace_schema_metadata({"lab.trace": head}), target)


def _read(source: Path) -> tuple[np.ndarray, dict]:
    """Spans and head of a file, by its first bytes."""
    with source.open("rb") as file:
        start = file.read(4)
    if start == b"PK\x03\x04":
        with np.load(source, allow_pickle=False) as held:
            return held["spans"], json.loads(str(held["head"]))
    if start == b"PAR1":
        return _read_parquet(source)
    return _read_json(source)


def _read_parquet(source: Path) -> tuple[np.ndarray, dict]:
    _, pq = _pyarrow("or use the .npz file")
    table = pq.read_table(source)
    spans = np.zeros(table.num_rows, SPAN)
    for name in SPAN.names:
        spans[name] = table[name].to_numpy()
    return spans, json.loads((table.schema.metadata or {})[b"lab.trace"])


def _read_json(source: Path) -> tuple[np.ndarray, dict]:
    held = json.loads(source.read_text(encoding="utf-8"))
    head = held["otherData"]
    number = {name: place for place, name in enumerate(head["phases"])}
    rows = [
        (
            event["pid"],
            event["args"]["call"],
            event["tid"],
            number[event["name"]],
            event["args"]["begin_ns"],
            event["args"]["end_ns"],
        )
        for event in held["traceEvents"]
        if event["ph"] == "X"
    ]
    return np.array(rows, SPAN), head


def _pyarrow(otherwise: str) -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise LabError("Parquet needs pyarrow", hint=f"pip install pyarrow, {otherwise}") from missing
    return pyarrow, pyarrow.parquet
