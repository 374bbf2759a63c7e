"""Bare barriers and drains in whole protocols: right where the machine keeps the order, found where it does not."""

from __future__ import annotations

import pytest

from lab.protocol.program import Barrier, Drain, Fence
from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQUIRE,
    BLOCK,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    Protocol,
    protocol,
)
from lab.sim.check import check
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.search.search import search


def rows_of(publish, waves: int = 2) -> Protocol:
    """All waves put a row into each peer, `publish` says that it is there by a relaxed flag in the own memory."""

    def memory(d: Declare) -> None:
        d.payload("rows", d.max_elements, UNCACHED, source=d.world)
        d.words("flag")
        d.words("met")

    def put_rows(b: Block) -> None:
        for j in b.peers:
            b.copy(b.input, b.on(j).rows[b.rank], vector=8)
        publish(b)
        b.leader.store(b.mine.flag, b.call, RELAXED, SYSTEM)
        for j in b.peers:
            b.leader.wait(b.on(j).flag, ">=", b.call, ACQUIRE, SYSTEM)
        b.barrier()
        b.reduce([b.input if j == b.rank else b.mine.rows[j] for j in range(b.world)], b.output, vector=8)

    return protocol(memory=memory, blocks=1, threads=128, waves=waves, bytes=2048, calls=1, world=2)(put_rows)


def drained(b: Block) -> None:
    b.drain()
    b.bare_barrier()


def undrained(b: Block) -> None:
    b.bare_barrier()
    b.leader.fence(RELEASE, SYSTEM)


def counted(b: Block) -> None:
    """The same as `undrained`, met by hand."""
    b.add(b.mine.met, 1, RELAXED, BLOCK)
    b.wait(b.mine.met, ">=", 2, RELAXED, BLOCK)
    b.leader.fence(RELEASE, SYSTEM)


def synchronised(b: Block) -> None:
    b.barrier()
    b.leader.fence(RELEASE, SYSTEM)


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
def test_drained_by_every_wave_is_right(memory):
    made = rows_of(drained)
    verdict = check(made, made.config(), memory=memory, executions=200)
    assert verdict.ok and not verdict.races and not verdict.failing


@pytest.mark.parametrize("publish", [undrained, counted])
@pytest.mark.parametrize("memory", ["posted", "weak"])
def test_a_missing_drain_makes_values_wrong(publish, memory):
    """The leader's fence waits for its own wave's stores alone: the other wave may still be sending."""
    made = rows_of(publish)
    verdict = check(made, made.config(), memory=memory, executions=200, minimise=False)
    assert verdict.verdict == "wrong" and verdict.races
    assert Engine(compile_tables(made.program()), memory).batch("pct", 0, 300)[m.T_WRONG] > 0


@pytest.mark.parametrize("publish", [drained, synchronised])
def test_no_schedule_is_wrong_under_posted(publish):
    made = rows_of(publish)
    found = search(compile_tables(made.program()), "posted", stop=False)
    assert found.complete and not found.failed


@pytest.mark.parametrize("publish", [undrained, counted])
def test_the_search_finds_the_missing_drain_under_posted(publish):
    made = rows_of(publish)
    assert search(compile_tables(made.program()), "posted").failed


def test_one_wave_has_nothing_to_wait_for_but_itself():
    """A block that is one agent meets itself; its drain still counts."""
    made = rows_of(drained, waves=1)
    program = made.program()
    ops = [op for agent in program.agents for op in agent.ops]
    assert sum(isinstance(op, Drain) for op in ops) == sum(isinstance(op, Barrier) and op.bare for op in ops) == 2
    assert not any(isinstance(op, Fence) for op in ops)
    assert check(made, made.config(), memory="posted", executions=50).ok


def test_the_listing_names_both():
    program = rows_of(drained, waves=1).program()
    text = program.listing(next(agent for agent in program.agents if agent.kind == "block"))
    assert "bare block barrier" in text and "drain: wait for the own loads and stores" in text


def test_a_drain_changes_the_fingerprint():
    assert rows_of(drained, 1).program().fingerprint() != rows_of(synchronised, 1).program().fingerprint()
