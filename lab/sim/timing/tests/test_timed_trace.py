"""A timed run becomes a trace whose phases are the protocol's, in order, and whose records must be whole."""

import numpy as np
import pytest

from lab.errors import LabError
from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.sim.timing.timed_trace import trace_of
from lab.sim.timing.timing import simulate


@pytest.fixture(scope="module")
def run():
    protocol = load("repaired_two_shot")
    program = protocol.program(protocol.config(world=2, blocks=2, calls=3, bytes=(8192,)))
    return simulate(compile_tables(program), "h200", seed=3, record=1 << 16)


def test_every_block_of_every_call_has_the_phases_of_the_text_in_order(run):
    trace = trace_of(run)
    assert trace.phases == ("prologue", "scatter", "reduce", "allgather", "copy out")
    assert (trace.source, trace.machine, trace.about["algorithm"]) == ("simulated", "h200", "repaired_two_shot")
    for rank in range(2):
        for call in range(1, 4):
            for block in range(2):
                here = trace.spans[
                    (trace.spans["rank"] == rank) & (trace.spans["call"] == call) & (trace.spans["block"] == block)
                ]
                assert here["phase"].tolist() == [0, 1, 2, 3, 4]
                assert np.all(here["begin"][1:] >= here["end"][:-1])


def test_a_span_has_the_times_of_its_first_and_last_operation(run):
    trace = trace_of(run)
    agent = next(a for a in run.tables.program.agents if (a.rank, a.call, a.block) == (1, 2, 1))
    ours = [k for k in range(len(run.span_op)) if run.span_agent[k] == agent.id]
    reduce = [k for k in ours if agent.ops[run.span_op[k]].phase == "reduce"]
    span = next(s for s in trace.of_phase("reduce") if (s["rank"], s["call"], s["block"]) == (1, 2, 1))
    assert span["begin"] == min(run.span_begin[k] for k in reduce)
    assert span["end"] == max(run.span_end[k] for k in reduce)


def test_a_run_without_a_whole_record_is_refused(run):
    for record in (0, 10):
        with pytest.raises(LabError, match="whole record"):
            trace_of(simulate(run.tables, "h200", seed=3, record=record))
