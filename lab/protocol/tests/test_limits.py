"""What a protocol may ask for: endless loops end with their line, sizes and defaults that are none are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.protocol.errors import ProtocolError
from lab.protocol.language import build, record
from lab.protocol.library import load
from lab.protocol.write import ACQUIRE, SYSTEM, Block, Declare, Host, protocol


def nothing(m: Declare) -> None:
    """A rank owns nothing."""


def line_of(problem: LabError) -> str:
    """The text of the line that an error names."""
    assert isinstance(problem, ProtocolError) and problem.site is not None
    assert Path(problem.site.file) == Path(__file__)
    return problem.site.text


def test_an_endless_loop_of_a_kernel_ends_with_its_line(monkeypatch):
    monkeypatch.setattr(record, "MAX_OPS_OF_AGENT", 1000)

    def kernel(b: Block) -> None:
        while True:
            b.barrier()

    with pytest.raises(ProtocolError, match="more than 1,000 operations of one agent are recorded") as raised:
        protocol(memory=nothing, bytes=64)(kernel).program()
    assert line_of(raised.value) == "b.barrier()"


def test_an_endless_loop_of_a_host_ends_with_its_line(monkeypatch):
    monkeypatch.setattr(record, "MAX_OPS", 1000)

    def endless(h: Host) -> None:
        x = h.input(64)
        while True:
            h.launch(x, x)

    made = protocol(memory=nothing, bytes=64, scenarios={"endless": endless})(lambda b: b.copy(b.input, b.output))
    with pytest.raises(ProtocolError, match="more than 1,000 operations are recorded"):
        made.program()


def test_an_endless_loop_of_buffers_ends_with_its_line(monkeypatch):
    monkeypatch.setattr(build, "MAX_REGIONS", 1000)

    def endless(h: Host) -> None:
        while True:
            h.input(64)

    made = protocol(memory=nothing, bytes=64, scenarios={"endless": endless})(lambda b: b.copy(b.input, b.output))
    with pytest.raises(ProtocolError, match="too many regions and buffers: 1,000") as raised:
        made.program()
    assert line_of(raised.value) == "h.input(64)"


def test_the_caps_leave_room_for_what_is_real():
    """The largest launch of a block, and the host with the most calls, are far from the caps."""
    made = load("two_shot")
    program = made.program(made.config(world=8, calls=64, bytes=(1 << 20,)))
    assert max(len(agent.ops) for agent in program.agents) * 64 < record.MAX_OPS_OF_AGENT
    assert program.n_ops * 8 < record.MAX_OPS


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda m: m.words("w", 1 << 40), "region w is too large: a rank has regions of at most 4,194,304 words"),
        (lambda m: m.words("w", 4, row=1 << 21), "region w is too large"),
        (lambda m: m.payload("w", 1 << 41), "at most 1,099,511,627,776 elements"),
        (lambda m: m.words("w", 1.5), "words of region w is no whole number: 1.5"),
        (lambda m: m.words("w", "four"), "words of region w is no whole number: 'four'"),
        (lambda m: m.payload("w", 4, parity=2.0), "parity of region w is no whole number: 2.0"),
        (lambda m: m.payload("w", 4, parity=0), "region w would be empty: parity: 0"),
        (lambda m: m.payload("w", -4, parity=-1), "region w would be empty: elements: -4"),
        (lambda m: m.words("w", initial=1 << 32), "what the words of w hold at first fits 32 bits: 4294967296"),
        (lambda m: m.words("w", initial="x"), "what the words of w hold at first fits 32 bits: 'x'"),
        (lambda m: m.words("w", 4, 2), "this is no kind of memory; use UNCACHED, CACHED, HOST_MAPPED, BLOCK_SHARED"),
    ],
)
def test_a_declaration_that_is_none(declare, message):
    with pytest.raises(ProtocolError) as raised:
        protocol(memory=declare, bytes=64)(lambda b: b.copy(b.input, b.output)).program()
    assert message in str(raised.value) and "m." in line_of(raised.value)


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"bytes": "1KiB"}, "the default of `bytes` is a whole number: '1KiB'"),
        ({"bytes": (64, 1.5)}, "the default of `bytes` is a whole number: 1.5"),
        ({"world": "two"}, "the default of `world` is a whole number: 'two'"),
        ({"calls": 1.5}, "the default of `calls` is a whole number: 1.5"),
        ({"waves": True}, "the default of `waves` is a whole number: True"),
        ({"threads": "all"}, "the default of `threads` is a whole number: 'all'"),
        ({"gate": "64KiB"}, "the default of `gate` is a whole number: '64KiB'"),
        ({"blocks": "many"}, "`blocks` is a number, or a function of a size in bytes: 'many'"),
        ({"ranks": 2}, "this is no default of a configuration: 'ranks'"),
    ],
)
def test_a_default_that_is_none_names_the_decorator(defaults, message):
    with pytest.raises(ProtocolError) as raised:
        protocol(memory=nothing, **{"bytes": 64, **defaults})(lambda b: b.copy(b.input, b.output))
    assert message in str(raised.value) and "protocol(memory=nothing" in line_of(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calls": 1.5}, "calls is no whole number: 1.5"),
        ({"world": "4"}, "world is no whole number: '4'"),
        ({"bytes": "64KiB"}, "bytes is no whole number of bytes: '64KiB'"),
        ({"bytes": 64.0}, "bytes is no whole number of bytes: 64.0"),
        ({"gate": "1MiB"}, "gate is no whole number of bytes: '1MiB'"),
        ({"blocks": 2.0}, "blocks is no whole number: 2.0"),
    ],
)
def test_a_configuration_that_is_none(changes, message):
    made = protocol(memory=nothing, bytes=64)(lambda b: b.copy(b.input, b.output))
    with pytest.raises(LabError) as raised:
        made.config(**changes)
    assert message in str(raised.value)


def test_what_accepts_raises_has_its_line():
    def accepts(config):
        return config.no_such_field

    with pytest.raises(ProtocolError, match=r"AttributeError: .*no_such_field") as raised:
        protocol(memory=nothing, bytes=64, accepts=accepts)(lambda b: b.copy(b.input, b.output)).config()
    assert line_of(raised.value) == "return config.no_such_field"


def test_accepts_returns_a_reason_or_none():
    made = protocol(memory=nothing, bytes=64, accepts=lambda config: True)(lambda b: b.copy(b.input, b.output))
    with pytest.raises(LabError, match="returns why it refuses a configuration, or None"):
        made.config()


@pytest.mark.parametrize("size", [1.5, "64", 0, 3, -64])
def test_a_buffer_that_is_none(size):
    def scenario(h: Host) -> None:
        h.launch(h.input(size), None)

    made = protocol(memory=nothing, bytes=64, scenarios={"once": scenario})(lambda b: b.copy(b.input, b.input))
    with pytest.raises(ProtocolError, match="a whole number of elements of 2 bytes") as raised:
        made.program()
    assert line_of(raised.value) == "h.launch(h.input(size), None)"


# ---- b.call


def calls_seen(scenario, **options) -> list[int]:
    seen = []

    def kernel(b: Block) -> None:
        seen.append(b.call)
        b.copy(b.input, b.output)

    protocol(memory=nothing, bytes=64, world=1, scenarios={"own": scenario})(kernel).program()
    return seen


def test_a_captured_launch_keeps_the_number_that_the_host_counted_to():
    def graph(h: Host) -> None:
        x, out = h.input(64), h.output(64)
        h.launch(x, out)
        captured = h.capture(x, out)
        h.replay(captured)
        h.launch(x, out)
        h.replay(captured)

    assert calls_seen(graph) == [1, 2, 3, 2]


def test_the_host_can_say_which_call_it_is():
    def two_kernels_a_call(h: Host) -> None:
        x, out = h.input(64), h.output(64)
        for call in (1, 2):
            h.launch(x, out, call=call)
            h.launch(x, out, call=call)
        h.launch(x, out)

    assert calls_seen(two_kernels_a_call) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("call", [0, 1.5, True, "one"])
def test_a_call_that_is_none(call):
    def scenario(h: Host) -> None:
        h.launch(h.input(64), h.output(64), call=call)

    with pytest.raises(ProtocolError, match="calls are counted from 1"):
        calls_seen(scenario)


def test_a_bounded_register_indexes_a_region():
    def memory(m: Declare) -> None:
        m.payload("slot", 4, parity=2)
        m.words("turn")

    def kernel(b: Block) -> None:
        slot = b.let(1)
        b.copy(b.input[:4], b.mine.slot[slot])
        b.assign(slot, b.load(b.mine.turn, ACQUIRE, SYSTEM) % 2)

    assert protocol(memory=memory, bytes=64)(kernel).program()


def test_a_bounded_register_stays_bounded():
    def memory(m: Declare) -> None:
        m.payload("slot", 4, parity=2)
        m.words("turn")

    def kernel(b: Block) -> None:
        slot = b.let(1)
        b.copy(b.input[:4], b.mine.slot[slot])
        b.assign(slot, b.load(b.mine.turn, ACQUIRE, SYSTEM))
        b.copy(b.input[:4], b.mine.slot[slot])

    with pytest.raises(ProtocolError):
        from lab.protocol.tables import compile_tables

        compile_tables(protocol(memory=memory, bytes=64)(kernel).program())
