"""A schedule line repeats an execution bit for bit, and nothing but the line that was printed is taken for one."""

import subprocess
import sys
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lab.cli import app
from lab.cli.errors import DEFECT
from lab.errors import LabError
from lab.protocol.library import load
from lab.protocol.program import Cache, Cond, Expr, Mapping, Order, Program, Region, Scope, Site, Span, WordRef
from lab.protocol.tables import compile_tables
from lab.protocol.write import SYSTEM, Config
from lab.sim.check import check
from lab.sim.explain.replay import digest, replay
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.machine.schedule import Schedule, _pack, _unpack, parse
from lab.sim.tests.programs import small

SMALL = {"world": 2, "blocks": 2, "calls": 2, "bytes": (2048,)}


def schedule(name: str = "seed_two_shot", memory: str = "sc", seed: int = 3, **changes: object) -> str:
    """The line of one random execution."""
    protocol = load(name)
    config = protocol.config(**SMALL | changes)
    program = protocol.program(config)
    choices = Engine(compile_tables(program), memory).choices("random", seed)
    return Schedule(name, config, memory, program.fingerprint(), choices).line(protocol.defaults)


# ---- bit-identical


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@pytest.mark.parametrize("name", ["seed_one_shot", "seed_two_shot", "repaired_two_shot"])
def test_two_replays_are_bit_identical(name, memory):
    line = schedule(name, memory)
    one, two = replay(line), replay(line)
    assert one == two and len(one.steps) > 50


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_the_replay_is_the_execution_that_the_scheduler_made(memory):
    """Not only the choices: what every step saw and wrote, and all memory at the end."""
    protocol = load("seed_two_shot")
    tables = compile_tables(protocol.program(protocol.config(**SMALL)))
    for seed in range(20):
        first = execute(tables, memory, m.RANDOM, seed)
        choices = first.log.choice[: first.steps].copy()
        assert digest(execute(tables, memory, m.REPLAY, choices=choices)) == digest(first)


def test_another_process_repeats_it():
    line = schedule(memory="posted")
    code = "import sys; from lab.sim.explain.replay import replay; print(replay(sys.argv[1]).digest)"
    found = {
        subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert found == {replay(line).digest + "\n"}


def test_other_executions_have_other_digests():
    assert len({replay(schedule(seed=seed)).digest for seed in range(10)}) == 10
    assert replay(schedule(memory="sc")).digest != replay(schedule(memory="posted")).digest


def test_executions_with_timeouts_are_repeated():
    protocol = load("seed_two_shot")
    tables = compile_tables(protocol.program(protocol.config(**SMALL)))
    engine = Engine(tables)
    timeouts = 0
    for seed in range(40):
        choices = engine.choices("random", seed, early_timeout=int(0.02 * 2**32))
        gave_up, words = engine.timeouts, engine.state.word.copy()
        outcome, made = engine.follow(choices, m.REPLAY)
        assert outcome != m.DIVERGED and np.array_equal(made, choices)
        assert engine.timeouts == gave_up and np.array_equal(engine.state.word, words)
        timeouts += gave_up
    assert timeouts > 10


# ---- lines


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), max_size=40))
def test_steps_survive_packing(runs):
    steps = np.repeat(np.array([entity for entity, _ in runs], np.int32), [count for _, count in runs])
    assert np.array_equal(_unpack(_pack(steps)), steps)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"world": 3, "blocks": 1},
        {"bytes": (2048, 1002), "gate": 4096, "calls": 3},
        {"dtype": "fp32", "options": (("pace", 1),)},
        {"scenario": "isolated", "waves": 2},
        {"blocks": None},
    ],
)
def test_a_line_brings_back_its_configuration(changes):
    parsed, _, program = parse(schedule(**changes))
    assert parsed.config == load("seed_two_shot").config(
        **{k: v for k, v in (SMALL | changes).items() if v is not None}
    )
    assert parsed.fingerprint == program.fingerprint()


def test_a_line_is_one_word_that_a_shell_leaves_alone_in_quotes():
    line = schedule()
    assert not set(line) & set(" '\"\n\t\\!`$")


@pytest.mark.parametrize("memory", ["sc", "posted"])
def test_every_flipped_character_is_noticed(memory):
    line = schedule(memory=memory)
    for at, character in enumerate(line):
        other = chr(ord(character) ^ 1)
        with pytest.raises(LabError):
            parse(line[:at] + other + line[at + 1 :])


def test_every_truncation_is_noticed():
    line = schedule()
    for length in range(len(line)):
        with pytest.raises(LabError):
            parse(line[:length])


def checked(body: str) -> str:
    return f"{body}&check={zlib.crc32(body.encode()):08x}"


@settings(max_examples=300)
@given(st.data())
def test_damage_with_a_right_checksum_is_one_clear_error_or_a_valid_line(data):
    """Nobody makes such a line by accident; still it must not end in a traceback."""
    body = LINE.rpartition("&check=")[0]
    at = data.draw(st.integers(0, len(body) - 1))
    put = data.draw(st.sampled_from([*"0189aZz=&?#%-_.,", ""]))
    try:
        replay(checked(body[:at] + put + body[at + 1 :]))
    except LabError as problem:
        assert str(problem)


LINE = schedule()


@pytest.mark.parametrize(
    "query",
    ["world=x", "bytes=", "bytes=1,2,x", "option.pace=x", "calls=9999", "wurld=3", "option.pase=1", "world=%ff"],
)
def test_a_line_with_bad_parameters(query):
    body = LINE.rpartition("&check=")[0]
    with pytest.raises(LabError):
        parse(checked(f"seed_two_shot?{query}#{body.partition('#')[2]}"))


def test_a_line_of_another_program_is_refused():
    other = LINE.rpartition("&check=")[0].replace("seed_two_shot", "repaired_two_shot")
    with pytest.raises(LabError, match="belongs to another version of repaired_two_shot"):
        parse(checked(other))


def test_steps_that_do_not_fit_are_refused():
    protocol = load("seed_two_shot")
    config = protocol.config(**SMALL)
    fingerprint = protocol.program(config).fingerprint()
    line = Schedule("seed_two_shot", config, "sc", fingerprint, np.array([0, 0, 900], np.int32)).line(protocol.defaults)
    with pytest.raises(LabError, match="names an agent that cannot move"):
        replay(line)


# ---- the fingerprint of a program


def changed(value: object) -> object:
    """Another value of the same kind; None: there is none that makes sense."""
    if isinstance(value, Mapping):
        return replace(value, threads=value.threads // 2)
    if isinstance(value, (Order, Scope, Cache, Cond)):
        return type(value)((value + 1) % len(type(value)))
    if isinstance(value, Span):
        return replace(value, length=value.length - 1)
    if isinstance(value, WordRef):
        return replace(value, index=value.index + 1)
    if isinstance(value, Expr):
        return value + 1
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else None


def variants(program: Program):
    """(what, program) with one field of one operation changed."""
    for agent in program.agents:
        for position, op in enumerate(agent.ops):
            for field in fields(op):
                other = changed(getattr(op, field.name))
                if field.name == "site" or other is None:
                    continue
                ops = list(agent.ops)
                ops[position] = replace(op, **{field.name: other})
                agents = list(program.agents)
                agents[agent.id] = replace(agent, ops=tuple(ops))
                yield f"{type(op).__name__}.{field.name}", replace(program, agents=tuple(agents))


def test_every_field_of_every_operation_is_in_the_fingerprint():
    """A line must not be taken for one of a program that does something else."""
    config = Config(world=2, bytes=(512,), blocks=1, waves=1)
    program = load("seed_two_shot").program(
        load("seed_two_shot").config(**{f: getattr(config, f) for f in ("world", "bytes", "blocks")})
    )
    known, missed = program.fingerprint(), set()
    for what, other in variants(program):
        if other.fingerprint() == known:
            missed.add(what)
    assert missed == set()


def test_regions_are_in_the_fingerprint():
    program = small(lambda b: b.store(b.mine.x, 1, Order.RELAXED, SYSTEM), words=["x"])
    region = program.regions[0]
    assert isinstance(region, Region)
    other = replace(program, regions=(replace(region, initial=region.initial + 1), *program.regions[1:]))
    assert other.fingerprint() != program.fingerprint()


def test_the_line_where_an_operation_stands_is_not_in_the_fingerprint():
    """Moving a protocol down by a comment keeps its schedules."""
    program = small(lambda b: b.store(b.mine.x, 1, Order.RELAXED, SYSTEM), words=["x"])
    op = program.agents[0].ops[0]
    moved = replace(op, site=Site("elsewhere.py", 7, op.site.text))
    other = replace(program, agents=(replace(program.agents[0], ops=(moved,)), *program.agents[1:]))
    assert other.fingerprint() == program.fingerprint()


def test_a_replay_says_why_it_hangs():
    hang = check(load("mori_494"), minimise=False, repair_seconds=0)
    shown = CliRunner().invoke(app, ["replay", hang.schedule])
    assert shown.exit_code == DEFECT
    assert "nothing can move any more:" in shown.output and all(line in shown.output for line in hang.hang[:3])
