"""A straight program as a Promela model for SPIN (Holzmann, The SPIN Model Checker, 2003), the exact search's peer.

The model has memory where the straight form has counters: words with their values, and a version for each class of
payload cells, asserted at every read. So it checks what the straight form leaves out, and its states must be as many.
Each step is one transition; a link is a process that delivers what was posted. The model is as lean as SPIN allows:
bytes, no channels, safety only.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.errors import LabError
from lab.protocol import tables as t
from lab.sim.machine import words
from lab.sim.order import events as form
from lab.sim.order.straight import Straight

_SYMBOLS = {words.EQ: "==", words.NE: "!=", words.GE: ">=", words.GE_SIGNED: ">=", words.GE_MOD: ">="}
_SYMBOLS |= {words.LT: "<", words.LE: "<=", words.GT: ">"}


def promela(straight: Straight) -> str:
    """The model of a straight program without races.

    Raises:
        ValueError: It has races, packets, or a word of 256 or more, which a byte does not hold.
    """
    if np.any(straight.tables.ops[straight.op, t.STAMP] >= 0):
        raise ValueError("a packet changes several stamps in one step, a model of bytes does not")
    if straight.racy:
        raise ValueError("a racing program has no single expected version at a read")
    return _Model(straight).text()


class _Model:
    def __init__(self, straight: Straight) -> None:
        self.s = straight
        self.log = straight.execution.log
        s = straight
        self.agents = len(s.tables.agent_start)
        links = np.unique(s.entity[s.entity >= self.agents])
        self.link = {int(entity): k for k, entity in enumerate(links)}
        self.delivered_at = {}  # event of a posted store -> (link, its number on the link)
        count = dict.fromkeys(self.link, 0)
        for step in np.argsort(s.event):
            entity = int(s.entity[step])
            if entity in count:
                self.delivered_at[int(self.log.row[s.event[step]])] = (self.link[entity], count[entity])
                count[entity] += 1
        used = {int(self._word(step)) for step in range(s.steps) if s.kind[step] in _ON_WORD}
        self.words = {word: k for k, word in enumerate(sorted(used))}
        self._versions()

    def _versions(self) -> None:
        """For each event: the versions that it expects (class, version) and the classes that it writes."""
        cells, at, writes = self.s._accesses
        self.expects: dict[int, list[tuple[int, int]]] = {}
        self.writes: dict[int, list[tuple[int, int]]] = {}
        version: dict[int, int] = {}
        for cell, event, write in zip(cells.tolist(), at.tolist(), writes.tolist(), strict=True):
            if write:
                version[cell] = version.get(cell, 0) + 1
                self.writes.setdefault(event, []).append((cell, version[cell]))
            else:
                self.expects.setdefault(event, []).append((cell, version.get(cell, 0)))
        written = sorted(version)
        self.classes = {cell: k for k, cell in enumerate(written)}

    def _word(self, step: int) -> int:
        event = int(self.s.event[step])
        if int(self.s.entity[step]) >= self.agents:
            event = int(self.log.row[event])
        return int(self.log.row[event])

    def text(self) -> str:
        s = self.s
        lines = [f"/* {s.tables.program.protocol} {dict(s.tables.program.config)} under {s.memory} */"]
        lines.append(f"byte w[{max(1, len(self.words))}]; byte v[{max(1, len(self.classes))}];")
        lines.append(f"byte posted[{max(1, len(self.link))}]; byte arrived[{max(1, len(self.link))}];")
        for k in range(s.threads):
            lines.append(f"active proctype t{k}() {{")
            lines += [f"  {self._step(step)}" for step in range(s.start[k], s.start[k + 1])]
            # Blocks instead of ending: the end of a process would be one more transition.
            lines += ["end_here: false", "}"]
        initial = [
            f"w[{k}] = {int(s.tables.word_initial[word])};"
            for word, k in self.words.items()
            if s.tables.word_initial[word]
        ]
        if initial:
            raise ValueError("words that do not begin at zero")
        return "\n".join(lines) + "\n"

    def _step(self, step: int) -> str:
        s, kind = self.s, int(self.s.kind[step])
        event, op = int(s.event[step]), int(s.op[step])
        conditions, effects = self._drained(step), []
        effects += [f"assert(v[{self.classes[c]}] == {n})" for c, n in self.expects.get(event, []) if c in self.classes]
        if int(s.entity[step]) >= self.agents:
            link, number = self.delivered_at[int(self.log.row[event])]
            conditions = [f"posted[{link}] > {number}"]
            if kind == form.DELIVER_WORD:
                effects.append(f"w[{self.words[self._word(step)]}] = {_byte(self.log.value[self.log.row[event]])}")
            effects.append(f"arrived[{link}] = {_byte(number + 1)}")
        elif event in self.delivered_at:
            link, number = self.delivered_at[event]
            effects.append(f"posted[{link}] = {_byte(number + 1)}")
        elif kind == form.WAIT:
            value = _byte(self.s.wanted[step])
            fn = int(s.tables.ops[op, t.FN])
            if fn not in _SYMBOLS:
                raise ValueError("a wait for a function of a word")
            symbol = _SYMBOLS[fn]
            conditions.append(f"w[{self.words[self._word(step)]}] {symbol} {value}")
        elif kind in (form.STORE, form.ADD, form.RMW):
            word = self.words[self._word(step)]
            new = _byte(self.log.value[event])
            if kind == form.ADD:
                effects.append(f"w[{word}] = w[{word}] + {_byte(self._amount(event, word))}")
            else:
                effects.append(f"w[{word}] = {new}")
        elif kind == form.LOAD:
            effects.append(f"assert(w[{self.words[self._word(step)]}] == {_byte(self.log.value[event])})")
        effects += [f"v[{self.classes[c]}] = {_byte(n)}" for c, n in self.writes.get(event, [])]
        guard = " && ".join(f"({c})" for c in conditions)
        body = "; ".join(effects) or "skip"
        return f"d_step {{ {guard} -> {body} }};" if guard else f"d_step {{ {body} }};"

    def _amount(self, event: int, word: int) -> int:
        seen = int(self.log.seen[event])
        old = int(self.log.value[seen]) if seen >= 0 else 0
        return int(self.log.value[event]) - old

    def _drained(self, step: int) -> list[str]:
        """What must be delivered before the step, from its guards on links."""
        s = self.s
        conditions = []
        if s.kind[step] == form.DELIVER_DATA or s.kind[step] == form.DELIVER_WORD:
            return conditions
        for k in range(s.guard_at[step], s.guard_at[step + 1]):
            row = int(s.start[s.guard_thread[k]] + s.guard_min[k] - 1)
            is_link = int(s.entity[row]) >= self.agents
            # A wait on the word that this delivery writes is a condition on the word, not on the link.
            if is_link and not (s.kind[step] == form.WAIT and self._delivers_to(row, self._word(step))):
                link, number = self.delivered_at[int(self.log.row[s.event[row]])]
                conditions.append(f"arrived[{link}] > {number}")
        return conditions

    def _delivers_to(self, row: int, word: int) -> bool:
        return self.s.kind[row] == form.DELIVER_WORD and self._word(row) == word


_ON_WORD = (form.WAIT, form.STORE, form.ADD, form.RMW, form.LOAD, form.DELIVER_WORD)


def _byte(value: int) -> int:
    if not 0 <= int(value) < 256:
        raise ValueError(f"{int(value)} does not fit a byte of the model")
    return int(value)


# ---- running SPIN


@dataclass(frozen=True)
class SpinResult:
    """What SPIN said: distinct states stored, transitions, assertion violations and invalid ends, processor seconds."""

    states: int
    transitions: int
    errors: int
    seconds: float
    version: str


def missing_tools() -> str | None:
    """Why SPIN cannot run here; None: it can."""
    for name in ("spin", "gcc"):
        if shutil.which(name) is None:
            return f"{name} is not installed (apt-get install spin gcc)"
    return None


def run_spin(
    model: str, reduce: bool = False, seconds: float = 300.0, repeat: int = 1, optimise: str = "-O3"
) -> SpinResult:
    """Let SPIN search all states of a model, exactly (no bitstate), compiled for speed.

    Args:
        model: Promela text.
        reduce: Its partial-order reduction.
        seconds: How long it may take.
        repeat: How often it runs; the fastest counts.
        optimise: gcc's level.

    Raises:
        LabError: SPIN or gcc is not installed, refuses the model, or takes too long.
    """
    missing = missing_tools()
    if missing:
        raise LabError("SPIN cannot run", value=missing)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "model.pml").write_text(model)
        # -o3: no merging of statements, so that a state is a state of the program.
        _tool(["spin", "-a", "-o3", "model.pml"], place, seconds)
        flags = [optimise, "-march=native", "-w", "-DSAFETY", "-DMEMLIM=8192", "-DVECTORSZ=4096"]
        _tool(["gcc", *flags, *([] if reduce else ["-DNOREDUCE"]), "-o", "pan", "pan.c"], place, seconds)
        spent = float("inf")
        for _ in range(repeat):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            output = _tool(["./pan", "-n", "-m100000", "-w22", "-c0"], place, seconds)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = min(spent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return SpinResult(
        _number(r"([0-9.e+]+) states, stored", output),
        _number(r"([0-9.e+]+) transitions", output),
        _number(r"errors: (\d+)", output),
        spent,
        (re.search(r"Spin Version ([0-9.]+)", output) or [0, "?"])[1],
    )


def _tool(command: list[str], place: Path, seconds: float) -> str:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as problem:
        raise LabError("SPIN takes too long", value=f"{command[0]} after {seconds:g} s") from problem
    if done.returncode:
        raise LabError(f"{command[0]} failed", value=(done.stdout + done.stderr)[-400:])
    return done.stdout


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    if found is None:
        raise LabError("SPIN's report cannot be read", value=output[-400:])
    return int(float(found[1]))
