"""Traces are kept exactly, in each form, and broken files and spans are refused with one message."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import LabError
from lab.trace import SPAN, Trace

PHASES = ("push", "meet", "reduce")


def trace_of(rows) -> Trace:
    return Trace.of(rows, source="recorded", machine="H200", about={"bytes": 4096})


@st.composite
def traces(draw):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 7), st.integers(0, 2**32 - 1), st.integers(0, 511), st.sampled_from(PHASES),
                st.floats(0, 1e15), st.floats(0, 1e6),
            ),
            max_size=20,
        )
    )  # fmt: skip
    return trace_of([(*row[:4], row[4], row[4] + row[5]) for row in rows])


@given(trace=traces(), ending=st.sampled_from([".npz", ".parquet", ".json"]))
def test_a_trace_is_read_back_as_it_was_written(tmp_path_factory, trace, ending):
    path = tmp_path_factory.mktemp("trace") / f"t{ending}"
    trace.save(path)
    again = Trace.load(path)
    assert np.array_equal(again.spans, trace.spans)
    assert (again.phases, again.source, again.machine, again.about) == (trace.phases, "recorded", "H200", trace.about)


def test_spans_are_sorted_and_phases_keep_their_order():
    trace = trace_of([(1, 1, 0, "push", 0, 5), (0, 1, 0, "push", 1, 4), (0, 1, 0, "meet", 4, 9)])
    assert trace.phases == ("push", "meet")
    assert trace.spans["rank"].tolist() == [0, 0, 1]
    assert trace.of_phase("meet")["end"].tolist() == [9]
    with pytest.raises(LabError, match="no such phase"):
        trace.of_phase("gather")


def test_perfetto_has_a_process_a_rank_and_times_in_microseconds(tmp_path):
    trace_of([(1, 7, 3, "push", 5000, 7000), (0, 7, 3, "push", 4000, 4500)]).save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"rank 0", "rank 1"}
    late = next(e for e in events if e["ph"] == "X" and e["pid"] == 1)
    assert (late["tid"], late["ts"], late["dur"]) == (3, 1.0, 2.0)
    assert late["args"] == {"call": 7, "begin_ns": 5000.0, "end_ns": 7000.0}


def test_the_form_is_seen_from_the_content(tmp_path):
    trace = trace_of([(0, 1, 0, "push", 0, 5)])
    for ending in (".npz", ".parquet", ".json"):
        trace.save(tmp_path / f"t{ending}")
        (tmp_path / f"t{ending}").rename(tmp_path / "other.name")
        assert np.array_equal(Trace.load(tmp_path / "other.name").spans, trace.spans)


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".json"])
def test_a_file_with_flipped_bits_is_refused_or_a_trace(tmp_path, ending):
    """Each byte in turn; a form without a checksum may read other numbers, but never fails in another way."""
    path = tmp_path / f"t{ending}"
    trace_of([(0, 1, b, "push", b, b + 5) for b in range(9)]).save(path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 1 if ending == ".npz" else 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            assert isinstance(Trace.load(path), Trace)
        except LabError as problem:
            refused += 1
            assert "Traceback" not in str(problem) and "numpy" not in str(problem) and "arrow" not in str(problem)
    assert refused > len(whole) // 12


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".json"])
@pytest.mark.parametrize("damage", ["cut", "text", "empty", "other"])
def test_a_broken_file_is_refused_with_one_message(tmp_path, ending, damage):
    path = tmp_path / f"t{ending}"
    trace_of([(0, 1, 0, "push", 0, 5)]).save(path)
    whole = path.read_bytes()
    if damage == "other":
        np.savez(tmp_path / "o.npz", a=np.arange(3))
        path.write_bytes((tmp_path / "o.npz").read_bytes())
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a trace", "empty": b""}[damage])
    with pytest.raises(LabError, match="holds no trace") as refused:
        Trace.load(path)
    assert "pickle" not in str(refused.value) and "it is damaged" in str(refused.value)


def test_other_bad_input_is_refused(tmp_path):
    with pytest.raises(LabError, match="no such trace"):
        Trace.load(tmp_path / "none.npz")
    with pytest.raises(LabError, match="ends before it begins"):
        trace_of([(0, 1, 0, "push", 5, 4)])
    with pytest.raises(LabError, match="ends before it begins"):
        trace_of([(0, 1, 0, "push", 5, float("nan"))])
    with pytest.raises(LabError, match="source of a trace"):
        Trace.of([], source="guessed", machine="")
    with pytest.raises(LabError, match="without a name"):
        Trace(np.array([(0, 1, 0, 3, 0, 1)], SPAN), ("push",), "recorded", "", {})
    with pytest.raises(LabError, match="not written in this form"):
        trace_of([]).save(tmp_path / "t.csv")
    head = json.dumps({"format": 99, "phases": [], "source": "recorded", "machine": "", "about": {}})
    np.savez(tmp_path / "t.npz", spans=np.zeros(0, SPAN), head=np.array(head))
    with pytest.raises(LabError, match="another format"):
        Trace.load(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", spans=np.zeros(3), head=np.array(head.replace("99", "1")))
    with pytest.raises(LabError, match="another type"):
        Trace.load(tmp_path / "t.npz")
    for head in ("[]", "{}", '{"format": 1, "phases": 3}'):
        np.savez(tmp_path / "t.npz", spans=np.zeros(0, SPAN), head=np.array(head))
        with pytest.raises(LabError, match="holds no trace"):
            Trace.load(tmp_path / "t.npz")
    with pytest.raises(LabError, match="this is a folder"):
        Trace.load(tmp_path)
    with pytest.raises(LabError, match="cannot be written"):
        trace_of([]).save(tmp_path / "none" / "t.npz")
    with pytest.raises(LabError, match="what JSON does not"):
        Trace.of([], source="recorded", machine="", about={"a": object()}).save(tmp_path / "t.npz")
    with pytest.raises(LabError, match="does not fit"):
        trace_of([(300, 1, 0, "push", 0, 5)])
