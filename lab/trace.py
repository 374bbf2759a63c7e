"""`Trace`: when each block of each rank was in which phase of which call; one schema for simulated and recorded runs.

    trace = Trace.load("experiments/.../two_shot.npz")
    trace.spans["end"] - trace.spans["begin"]  # nanoseconds

Times are nanoseconds of the rank's own clock. Clocks of different ranks may be offset against each other:
`lab.compare.align` bounds the offsets from what must have come before what.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

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
        if self.spans.dtype != SPAN:
            raise LabError("spans of a trace have another type", value=str(self.spans.dtype))
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
            LabError: A span ends before it begins, or `source` is not one of SOURCES.
        """
        names: dict[str, int] = {}
        listed = [
            (rank, call, block, names.setdefault(phase, len(names)), begin, end)
            for rank, call, block, phase, begin, end in rows
        ]
        spans = np.array(listed, SPAN)
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
        spans = self.spans.copy()
        for rank, offset in offsets.items():
            here = spans["rank"] == rank
            spans["begin"][here] += offset
            spans["end"][here] += offset
        return Trace(spans, self.phases, self.source, self.machine, self.about)

    def save(self, path: str | Path) -> None:
        """Write it as `.npz` (spans and a JSON head), `.parquet`, or `.json` for Perfetto and chrome://tracing.

        Raises:
            LabError: The ending is none of these, or `.parquet` is asked for without pyarrow.
        """
        target = Path(path)
        if target.suffix == ".npz":
            np.savez_compressed(target, spans=self.spans, head=np.array(json.dumps(self._head())))
        elif target.suffix == ".parquet":
            self._save_parquet(target)
        elif target.suffix == ".json":
            target.write_text(json.dumps(self.perfetto()), encoding="utf-8")
        else:
            raise LabError("a trace is not written in this form", value=target.name, hint="use .npz, .parquet or .json")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote as `.npz` or `.parquet`.

        Raises:
            LabError: There is no such file, or it holds no trace, or one of another version.
        """
        source = Path(path)
        if not source.exists():
            raise LabError("there is no such trace", value=str(source))
        try:
            spans, head = cls._read_parquet(source) if source.suffix == ".parquet" else cls._read_npz(source)
        except (OSError, ValueError, KeyError, BadZipFile, EOFError) as problem:
            # What numpy and Parquet say of such a file is for programmers; only the system's own word helps.
            why = problem.strerror if isinstance(problem, OSError) else None
            raise LabError(
                "this file holds no trace of the lab",
                value=str(source),
                hint=why or "it is damaged, or something else than what `Trace.save` writes",
            ) from problem
        if head.get("format") != _FORMAT:
            raise LabError("this trace has another format", value=head.get("format"), hint=f"format {_FORMAT} is read")
        return cls(spans, tuple(head["phases"]), head["source"], head["machine"], head["about"])

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
                "args": {"call": int(span["call"])},
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

    def _save_parquet(self, target: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as missing:
            raise LabError("Parquet needs pyarrow", hint="pip install pyarrow, or save as .npz") from missing
        table = pa.table({name: self.spans[name] for name in SPAN.names})
        pq.write_table(table.replace_schema_metadata({"lab.trace": json.dumps(self._head())}), target)

    @staticmethod
    def _read_npz(source: Path) -> tuple[np.ndarray, dict]:
        with np.load(source, allow_pickle=False) as held:
            return held["spans"], json.loads(str(held["head"]))

    @staticmethod
    def _read_parquet(source: Path) -> tuple[np.ndarray, dict]:
        try:
            import pyarrow.parquet as pq
        except ImportError as missing:
            raise LabError("Parquet needs pyarrow", hint="pip install pyarrow, or use the .npz file") from missing
        table = pq.read_table(source)
        spans = np.zeros(table.num_rows, SPAN)
        for name in SPAN.names:
            spans[name] = table[name].to_numpy()
        return spans, json.loads((table.schema.metadata or {})[b"lab.trace"])
