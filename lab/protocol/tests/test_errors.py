"""A mistake in a protocol is reported with the line of the user's source, whatever the mistake is."""

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.protocol.errors import ProtocolError
from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.protocol.write import Config

FILE = """
from lab.protocol.write import *

def memory(m):
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flags", m.world)
    m.words("turn")

@protocol(memory=memory, blocks=1, bytes=256, world=2)
def mine(b):
    seq = b.load(b.mine.turn, ACQUIRE, DEVICE)
    {mistake}
    b.copy(b.input, b.output)
"""

MISTAKES = {
    "b.copy(b.input, b.mine.stagin[0, 0])": "rank 0 has no region: 'stagin'",
    "b.copy(b.input, b.mine.staging[0, 2])": "source of staging is out of range 0..1: 2",
    "b.copy(b.input, b.mine.staging[-1, 0])": "parity of staging is out of range 0..1: -1",
    "b.copy(b.input, b.mine.staging[0])": "staging takes the indices (parity, source)",
    "b.copy(b.input, b.mine.staging[seq % 3, 0])": "lies outside staging",
    "b.store(b.mine.flags[seq % 4], 1, RELEASE, SYSTEM)": "lies outside flags, which has 2 words",
    "b.copy(b.input, b.mine.staging[seq, 0])": "depends on register seq without a bound; write `seq % n`",
    "b.copy(b.input, b.mine.staging[seq, 0], b.vector_elements(b.mine.staging[seq, 0]))": "write `seq % n`",
    "b.store(b.mine.flags[seq], 1, RELEASE, SYSTEM)": "depends on register seq without a bound",
    "b.store(b.mine.flags[2], 1, RELEASE, SYSTEM)": "index of flags is out of range 0..1: 2",
    "b.copy(b.input, b.mine.staging[0, 0][:3])": "input 1 has 128 elements, staging[parity 0, source 0][0:3] 3",
    "b.copy(b.input[:999], b.output)": "elements [0, 999) do not exist in input 1",
    "b.copy(b.input[::2], b.output)": "has no step: 2",
    "b.copy(b.input, b.on(7).staging[0, 0])": "there is no rank 7 in a world of 2",
    "b.copy(b.input, b.mine.flags[0])": "this is not a span of payload",
    "b.store(b.mine.staging[0, 0], 1, RELEASE, SYSTEM)": "this is not a word of a region",
    "b.store(b.mine.flags, 1, RELEASE, SYSTEM)": "flags is not a single word",
    "b.copy(b.input[:1.5], b.output)": "the bounds of a part of input 1 are whole numbers: 1.5",
    "b.copy(b.input['a':], b.output)": "the bounds of a part of input 1 are whole numbers: 'a'",
    "b.copy(b.mine.staging[0, 0][0], b.output)": "a part of staging[parity 0, source 0] is a slice of its elements: 0",
    "b.copy(b.mine.staging[0][0], b.output)": "staging takes the indices (parity, source)",
    "b.copy(b.input, b.mine.staging[0, 1.0])": "source of staging is a whole number or a register: 1.0",
    "b.store(b.mine.flags['a'], 1, RELEASE, SYSTEM)": "index of flags is a whole number or a register: 'a'",
    "b.wait(b.mine.flags[0:2], '>=', 1, ACQUIRE, SYSTEM)": "words of flags are named one by one",
    "b.wait(b.mine.flags.words(0, 1.5), 'sum<=', 1, ACQUIRE, SYSTEM)": "counted in whole numbers: (0, 1.5)",
    "b.wait(b.mine.staging.words(0, 1), 'sum<=', 1, ACQUIRE, SYSTEM)": "staging has no words, it is payload",
    "b.store(b.mine.turn, 1 << 40, RELEASE, SYSTEM)": "a word has 32 bits, which 1099511627776 does not fit",
    "b.store(b.mine.turn, -(1 << 31) - 1, RELEASE, SYSTEM)": "a word has 32 bits",
    "b.wait(b.mine.turn, '>=', 1 << 32, ACQUIRE, SYSTEM)": "a word has 32 bits",
    "b.store(b.mine.turn, 1.5, RELEASE, SYSTEM)": "a word is an int or a register expression, not 1.5",
    "raise SystemExit(0)": "the protocol ends the whole program (SystemExit): 0",
    "exit()": "the protocol ends the whole program (SystemExit)",
    "1 / 0": "ZeroDivisionError: division by zero",
    "b.ret()": "this operation can never run",
    "if seq: pass": "use `with b.when(expr):` instead of `if`",
    "b.ret() if seq == 3 else None": "use `with b.when(expr):` instead of `if`",
    "[1, 2][seq]": "a register cannot index a Python sequence",
    "for _ in range(70): b.let(1)": "at most 64 registers",
    "b.wait(b.mine.flags[0], '=>', 1, ACQUIRE, SYSTEM)": "unknown wait condition; use one of ==, !=, >=",
    "b.wait_stamps(b.mine.staging[0, 0], '=>', 1)": "unknown wait condition",
    "b.rmw('mul', b.mine.turn, 1, RELAXED, SYSTEM)": "unknown read-modify-write",
    "b.store(b.mine.turn, 1, 'release', SYSTEM)": "this is no memory order; use RELAXED, ACQUIRE, RELEASE, ACQ_REL",
    "b.store(b.mine.turn, 1, RELEASE, ACQUIRE)": "this is no memory scope",
    "b.store(b.mine.turn, seq % 0, RELEASE, SYSTEM)": "divided by a number that is known and not 0",
    "b.store(b.mine.turn, seq // seq, RELEASE, SYSTEM)": "divided by a number that is known and not 0",
    "b.copi(b.input, b.output)": "AttributeError: 'Block' object has no attribute 'copi'",
    "b.copy(b.input, nowhere)": "NameError: name 'nowhere' is not defined",
    "b.copy(b.input, b.output, 999)": "a vector has 1 to 256 elements in a grid of 256 threads: 999",
    "b.copy(b.input, b.output, 0)": "a vector has 1 to 256 elements",
}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:mine"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda text: text[:48])
def test_a_mistake_is_reported_with_its_line(tmp_path, mistake):
    protocol = load(written(tmp_path, FILE.format(mistake=mistake)))
    with pytest.raises(ProtocolError) as caught:
        compile_tables(protocol.program())
    said = str(caught.value)
    line = 13 if mistake == "b.ret()" else 12  # what cannot run is the line after it
    assert said.startswith(f"{tmp_path}/mine.py:{line}: "), said
    assert MISTAKES[mistake] in said
    assert "line: " in said and "Region(" not in said


def test_without_a_mistake_it_compiles(tmp_path):
    compile_tables(load(written(tmp_path, FILE.format(mistake="pass"))).program())


def test_the_nearest_region_is_offered(tmp_path):
    protocol = load(written(tmp_path, FILE.format(mistake="b.copy(b.input, b.mine.stagin[0, 0])")))
    with pytest.raises(ProtocolError, match="did you mean staging"):
        protocol.program()


def test_a_mistake_in_a_helper_names_the_helpers_line(tmp_path):
    text = FILE.format(mistake="helper(b)") + "\ndef helper(b):\n    b.copy(b.input, b.mine.nothing)\n"
    with pytest.raises(ProtocolError, match=r"mine.py:16: rank 0 has no region"):
        load(written(tmp_path, text)).program()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('m.words("turn")', 'm.words("turn", 0)', "region turn would be empty"),
        ('m.words("turn")', 'm.words("turn"); m.words("turn")', "already has a region of that name: 'turn'"),
        ('m.words("turn")', 'm.words("turn"); 1 / 0', "ZeroDivisionError"),
    ],
)
def test_a_mistake_in_the_memory_is_reported_with_its_line(tmp_path, old, new, said):
    protocol = load(written(tmp_path, FILE.format(mistake="pass").replace(old, new)))
    with pytest.raises(ProtocolError, match=said) as caught:
        protocol.program()
    assert "mine.py:7: " in str(caught.value)


@pytest.mark.parametrize("grid", ["lambda n: 0", "lambda n: 5000", "lambda n: n / 2"])
def test_a_grid_out_of_range_is_refused(tmp_path, grid):
    protocol = load(written(tmp_path, FILE.format(mistake="pass").replace("blocks=1", f"blocks={grid}")))
    with pytest.raises(LabError, match=r"the grid of .* is out of range"):
        protocol.program()


# ---- waits that nobody can satisfy


def waits(tmp_path, wait: str, declared: str = 'm.words("turn")'):
    return load(written(tmp_path, FILE.format(mistake=wait).replace('m.words("turn")', declared)))


def test_a_wait_that_nobody_can_satisfy_is_refused_with_its_line(tmp_path):
    protocol = waits(tmp_path, "b.wait(b.mine.turn, '>=', 1, ACQUIRE, SYSTEM)")
    with pytest.raises(ProtocolError, match=r"mine.py:12: no agent ever writes turn"):
        protocol.program()


def test_a_wait_that_the_initial_value_satisfies_is_fine(tmp_path):
    waits(tmp_path, "b.wait(b.mine.turn, '>=', 5, ACQUIRE, SYSTEM)", 'm.words("turn", initial=7)').program()


def test_a_bounded_wait_that_nobody_satisfies_is_a_test_of_its_timeout(tmp_path):
    waits(tmp_path, "b.wait(b.mine.turn, '>=', 1, ACQUIRE, SYSTEM, 10, lambda: b.ret())").program()


# ---- expressions


def test_a_deep_expression_is_refused_with_its_line_instead_of_overflowing_the_stack(tmp_path):
    deep = "[e := seq] + [e := seq + (seq * e) for _ in range(40)]; b.store(b.mine.turn, e, RELEASE, SYSTEM)"
    protocol = load(written(tmp_path, FILE.format(mistake=deep)))
    with pytest.raises(ProtocolError, match=r"mine.py:12: .*keep parts of it in `let`"):
        compile_tables(protocol.program())


def test_a_long_expression_that_needs_few_places_is_fine(tmp_path):
    long = "[e := seq] + [e := (e * 3) + 1 for _ in range(40)]; b.store(b.mine.turn, e, RELEASE, SYSTEM)"
    compile_tables(load(written(tmp_path, FILE.format(mistake=long))).program())


# ---- configurations


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world": 0}, "world is out of range: 0"),
        ({"world": 9}, "world is out of range: 9"),
        ({"blocks": 0}, "blocks is out of range: 0"),
        ({"calls": 0}, "calls is out of range: 0"),
        ({"bytes": (3,)}, "bytes is not a positive number of whole elements: 3"),
        ({"bytes": (0,)}, "bytes is not a positive number"),
        ({"bytes": (256,), "gate": 128}, "bytes is above the gate: 256"),
        ({"dtype": "fp8"}, "unknown dtype: 'fp8'"),
        ({"scenario": "isolatd"}, "did you mean isolated"),
        ({"waves": 3}, "does not divide into that many waves: 3"),
        ({"options": (("pase", 1),)}, "unknown option of seed_two_shot: 'pase'\n  did you mean pace"),
        ({"wurld": 3}, "unknown parameter: 'wurld'"),
    ],
)
def test_a_configuration_out_of_range_is_refused(changes, said):
    with pytest.raises(LabError) as caught:
        load("seed_two_shot").config(**changes)
    assert said in str(caught.value)


def test_a_protocol_may_refuse_a_configuration(tmp_path):
    text = FILE.format(mistake="pass").replace(
        "world=2)", "world=2, accepts=lambda c: 'two ranks only' if c.world > 2 else None)"
    )
    with pytest.raises(LabError, match="refuses this configuration: two ranks only"):
        load(written(tmp_path, text)).config(world=3)
    assert isinstance(load(written(tmp_path, text)).config(), Config)
