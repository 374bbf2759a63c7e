"""SPIN visits as many states as the exact search: models written by hand for the protocol, and models made of the
straight form."""

from __future__ import annotations

import pytest

from lab.sim.bench.models import tables_of
from lab.sim.bench.promela import missing_tools, promela, run_spin
from lab.sim.order.straight import straighten
from lab.sim.search.search import search

pytestmark = pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools()))


class TwoPhase:
    """The two-phase all-reduce in Promela, from its description and not from the lab's tables.

    Flags hold call numbers, slots the call that filled them; every reader asserts what it finds. Under `posted` each
    link has a process that delivers; flags are relaxed, so nothing waits for deliveries. A rank's host launches it
    and compares at the end.
    """

    def __init__(self, world: int, calls: int, posted: bool) -> None:
        self.world, self.calls, self.posted = world, calls, posted
        self.links: dict[tuple[int, int], list[str]] = {}

    def text(self) -> str:
        ranks = [self.rank(r) for r in range(self.world)]
        links = [self.link(pair, stores) for pair, stores in self.links.items()]
        n = self.world
        size = f"#define F(row,to,from) flag[(row)*{n * n}+(to)*{n}+(from)]\n"
        size += f"#define S(kind,p,to,from) slot[((kind)*2+(p))*{n * n}+(to)*{n}+(from)]\n"
        lengths = {
            "flag": 2 * n * n,
            "slot": 4 * n * n,
            "out": n * n,
            "posted": n * n,
            "arrived": n * n,
            "ready": 2 * n,
        }
        memory = "".join(f"byte {name}[{length}];\n" for name, length in lengths.items())
        return size + memory + "\n".join([*ranks, *links])

    def store(self, source: int, to: int, effect: str) -> str:
        """A store to another rank: at once, or left to the link."""
        if not self.posted:
            return effect
        sent = self.links.setdefault((source, to), [])
        sent.append(effect)
        return f"posted[{source * self.world + to}] = {len(sent)}"

    def link(self, pair: tuple[int, int], stores: list[str]) -> str:
        at = pair[0] * self.world + pair[1]
        steps = [
            f"d_step {{ (posted[{at}] > {k}) -> {effect}; arrived[{at}] = {k + 1} }};"
            for k, effect in enumerate(stores)
        ]
        return self.process(f"l{pair[0]}_{pair[1]}", steps)

    def rank(self, r: int) -> str:
        n, steps = self.world, [f"d_step {{ ready[{2 * r}] = 1 }};", f"d_step {{ (ready[{2 * r}] >= 1) -> skip }};"]
        peers = [(r + k) % n for k in range(1, n)]
        for call in range(1, self.calls + 1):
            p = call % 2
            steps += [f"d_step {{ {self.store(r, j, f'S(0,{p},{j},{r}) = {call}')} }};" for j in peers]
            steps += [f"d_step {{ {self.store(r, j, f'F(0,{j},{r}) = {call}')} }};" for j in peers]
            steps += [f"d_step {{ (F(0,{r},{j}) >= {call}) -> skip }};" for j in peers]
            sees = "; ".join(f"assert(S(0,{p},{r},{j}) == {call})" for j in peers)
            steps.append(f"d_step {{ {sees}; out[{r * n + r}] = {call} }};")
            for j in peers:
                push = self.store(r, j, f"S(1,{p},{j},{r}) = {call}")
                steps.append(f"d_step {{ assert(out[{r * n + r}] == {call}); {push} }};")
            steps += [f"d_step {{ {self.store(r, j, f'F(1,{j},{r}) = {call}')} }};" for j in peers]
            steps += [f"d_step {{ (F(1,{r},{j}) >= {call}) -> skip }};" for j in peers]
            steps += [f"d_step {{ assert(S(1,{p},{r},{j}) == {call}); out[{r * n + j}] = {call} }};" for j in peers]
        # The end of a kernel is a release: everything it posted has been delivered.
        sent = [(r * n + j, len(self.links[r, j])) for j in peers if (r, j) in self.links]
        drained = " && ".join(f"(arrived[{at}] >= {count})" for at, count in sent)
        steps.append(f"d_step {{ {drained + ' -> ' if sent else ''}ready[{2 * r + 1}] = 1 }};")
        steps.append(f"d_step {{ (ready[{2 * r + 1}] >= 1) -> skip }};")
        # The host compares each call's output; the model keeps the last one only.
        steps += ["d_step { skip };"] * (self.calls - 1)
        steps.append("d_step { " + "; ".join(f"assert(out[{r * n + j}] == {self.calls})" for j in range(n)) + " };")
        return self.process(f"r{r}", steps)

    @staticmethod
    def process(name: str, steps: list[str]) -> str:
        # It blocks at its end: the end of a process would be one more transition.
        return "\n".join([f"active proctype {name}() {{", *(f"  {step}" for step in steps), "end_here: false", "}"])


@pytest.mark.parametrize(
    ("world", "calls", "memory"), [(2, 2, "sc"), (3, 2, "sc"), (2, 3, "posted"), (3, 4, "posted"), (5, 1, "sc")]
)
def test_states_of_the_model_written_by_hand(world, calls, memory):
    tables = tables_of("two_phase", world, calls, order="relaxed")
    ours = search(tables, memory, reduce=False)
    spin = run_spin(TwoPhase(world, calls, memory == "posted").text(), optimise="-O1")
    assert spin.errors == 0 and ours.complete and not ours.failed
    assert spin.states == ours.states
    assert spin.transitions == ours.transitions + 1  # SPIN counts the start


@pytest.mark.slow
def test_states_of_the_larger_reference_model():
    ours = search(tables_of("two_phase", 5, 2), "sc", reduce=False)
    spin = run_spin(TwoPhase(5, 2, False).text())
    assert spin.errors == 0 and spin.states == ours.states


@pytest.mark.parametrize("memory", ["sc", "posted"])
@pytest.mark.parametrize("model", [("two_phase", 2, 2), ("two_phase", 3, 1), ("lagging", 3, 4)], ids=str)
def test_states_of_the_model_made_of_the_straight_form(model, memory):
    tables = tables_of(*model)
    ours = search(tables, memory, reduce=False)
    spin = run_spin(promela(straighten(tables, memory)), optimise="-O1")
    assert (spin.errors, spin.states, spin.transitions) == (0, ours.states, ours.transitions + 1)


def test_racing_programs_have_no_model():
    with pytest.raises(ValueError, match="racing"):
        promela(straighten(tables_of("two_phase", 2, 2, gather="shared")))
