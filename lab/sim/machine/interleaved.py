"""The machine: runs a Program's tables step by step under a scheduler and a memory model.

A *step* is one choice: an agent that executes its next visible operation, or (memory model `posted`) a link that
delivers its oldest store. Register arithmetic and branches are local and cost no step. A wait is a guard: an agent
whose condition is not met is not enabled, so no schedule is spent on polling. A bounded wait gives up only when nothing
else can move, unless the run allows early timeouts.

`interleaved_state.py` has the arrays, `interleaved_steps.py` what one step does; here is the loop over steps.

What limits it: on small programs, one random choice and one table row a step; on real geometry, moving the cells.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.sim.machine.interleaved_state import (  # noqa: F401 (what callers of an engine need is found on it)
    MEMORY_MODELS,
    POSTED,
    SC,
    State,
    Static,
    new_state,
    static,
)
from lab.sim.machine.interleaved_steps import deliver, drained, execute, hands_over, is_stale, settle, unpark  # noqa: F401
from lab.sim.machine.scheduler import (  # noqa: F401 (what callers of an engine need is found on it)
    C_ABORTS,
    C_ENABLED,
    C_OPS,
    C_POLLERS,
    C_STEPS,
    C_TIMEOUTS,
    C_UNSETTLED,
    C_WRONG,
    C_WRONG_OPS,
    DIVERGED,
    DONE,
    DRAINING,
    FINISHED,
    HANG,
    LEVEL_CHOICES,
    LEVEL_FULL,
    LEVEL_NONE,
    NO_MOVE,
    PARKED,
    PCT,
    PCT_DEPTH,
    POLLING,
    RANDOM,
    READY,
    REPLAY,
    RUN_ON,
    STEP_LIMIT,
    T_ABORTS,
    T_FAILING,
    T_FIRST,
    T_FIRST_ABORT,
    T_FIRST_HANG,
    T_FIRST_WRONG,
    T_HANGS,
    T_OPS,
    T_RUNS,
    T_SILENT,
    T_WRONG,
    TOLERANT,
    Log,
    add_outcome,
    add_up,
    below,
    demoted,
    disable,
    draw_change_points,
    enable,
    give_up,
    highest,
    lowest,
    may_time_out,
    new_change_points,
    new_log,
    new_totals,
    next_random,
    prioritise,
    seeded,
    stopped,
    sum_of_totals,
    timed_out,
    to_visible,
    unsettle,
    wake_pollers,
)


@njit(forceinline=True, cache=True, _nrt=False)
def _copy(to, source):
    for k in range(len(to)):
        to[k] = source[k]


@njit(forceinline=True, cache=True, _nrt=False)
def _clear(to, value):
    for k in range(len(to)):
        to[k] = value


@njit(cache=True, _nrt=False)
def reset(s, st):
    """The state at the start."""
    _copy(st.pc, s.agent_start)
    _copy(st.word, s.word_initial)
    _copy(st.cell, s.cell_initial)
    _clear(st.status, NO_MOVE)
    _clear(st.place, -1)
    _clear(st.word_writer, -1)
    _clear(st.waiter, -1)
    _clear(st.next_waiter, -1)
    _clear(st.cell_writer, -1)
    _clear(st.stamp, 0)
    _clear(st.queue_head, 0)
    _clear(st.queue_tail, 0)
    for agent in range(st.outstanding.shape[0]):
        for rank in range(st.outstanding.shape[1]):
            st.outstanding[agent, rank] = st.handed[agent, rank] = 0
        for register in range(st.registers.shape[1]):
            st.registers[agent, register] = 0
    _clear(st.counts, 0)
    for agent in range(len(st.pc) - 1, -1, -1):
        unsettle(st, agent)


@njit(cache=True, _nrt=False)
def _may_choose(s, st, entity):
    """Whether `entity` is enabled, or is the timeout of an agent that may time out."""
    timeouts = len(st.pc) + s.world * s.world
    if entity < timeouts:
        return entity >= 0 and st.place[entity] >= 0
    if entity >= len(st.priority):
        return False
    if is_stale(s, st, entity - timeouts):
        settle(s, st, entity - timeouts)  # the run that is repeated polled here without success, which is no step
    return may_time_out(s, st, entity - timeouts)


@njit(forceinline=True, cache=True, _nrt=False)
def _run(s, st, log, policy, seed, choices, change_points, early_timeout, max_steps, stop_on_wrong):
    reset(s, st)
    agents = len(st.pc)
    first_timeout = agents + s.world * s.world
    x = seeded(seed)
    if policy == PCT:
        x = prioritise(st, x)
    step = np.int64(0)
    cursor = np.int64(0)
    current = np.int64(-1)
    while True:
        while st.counts[C_UNSETTLED]:
            st.counts[C_UNSETTLED] -= 1
            settle(s, st, st.unsettled[st.counts[C_UNSETTLED]])
        st.counts[C_STEPS] = step
        n = st.counts[C_ENABLED]
        x = next_random(x)
        chosen = np.int64(-1)
        given = False
        if policy == TOLERANT:
            while cursor < len(choices) and not _may_choose(s, st, choices[cursor]):
                cursor += 1
        if (policy == REPLAY or policy == TOLERANT) and cursor < len(choices):
            chosen = np.int64(choices[cursor])
            cursor += 1
            given = True
            if not _may_choose(s, st, chosen):
                return DIVERGED
        elif n == 0:
            chosen = np.int64(timed_out(s, st, x, False))
            if chosen < 0:
                return stopped(s, st)
            chosen += first_timeout
        elif early_timeout > 0 and below(x, 1 << 32) < early_timeout and timed_out(s, st, x, True) >= 0:
            x = next_random(x)  # the number that made it a timeout is small, so it cannot also say whose
            chosen = first_timeout + timed_out(s, st, x, True)
        elif policy == RANDOM:
            chosen = st.enabled[below(x, n)]
        elif policy == PCT:
            chosen = demoted(st, change_points, step, highest(st))
        else:
            chosen = current if current >= 0 and current < agents and st.place[current] >= 0 else lowest(st)
        if step >= max_steps:
            return STEP_LIMIT
        current = chosen
        if log.level != LEVEL_NONE:
            log.choice[step] = chosen
        if chosen < agents:
            if is_stale(s, st, chosen):
                # Met when the agent was enabled, not any more: it polls again and sees nothing.
                unsettle(st, chosen)
                if policy == REPLAY and given:
                    return DIVERGED
                continue
            execute(s, st, log, chosen, step)
        elif chosen < first_timeout:
            if log.level == LEVEL_FULL:
                log.op[step] = -1
                log.row[step] = st.queue[s.link_at[chosen - agents] + st.queue_head[chosen - agents], 4]
            deliver(s, st, chosen - agents)
        else:
            agent = chosen - first_timeout
            unpark(s, st, agent)
            if log.level == LEVEL_FULL:
                log.op[step] = -2
                log.row[step] = st.pc[agent]
            give_up(s, st, agent)
        step += 1
        st.counts[C_STEPS] = step
        if stop_on_wrong and st.counts[C_WRONG]:
            return DONE


@njit(nogil=True, cache=True, _nrt=False)
def _runs(s, st, log, policy, seed, count, choices, change_points, early_timeout, max_steps, stop_on_wrong, totals):
    # One function that is compiled once: `run` and `batch` both call it.
    outcome = np.int64(DONE)
    for k in range(seed, seed + count):
        if policy == PCT:
            draw_change_points(change_points, k, len(s.ops))
        outcome = _run(s, st, log, policy, k, choices, change_points, early_timeout, max_steps, stop_on_wrong)
        add_up(st, totals, k, outcome)
    return outcome


def run(
    s: Static,
    st: State,
    log: Log,
    policy: int,
    seed: int = 0,
    choices: np.ndarray | None = None,
    early_timeout: int = 0,
    max_steps: int | None = None,
    pct_depth: int = PCT_DEPTH,
) -> int:
    """Run once from the start.

    Args:
        s: From `static`.
        st: From `new_state`; holds the state at the end.
        log: From `new_log`; its level says what is kept.
        policy: RANDOM; PCT; RUN_ON (the same agent until it blocks, then the lowest); REPLAY (`choices`, then RUN_ON);
            TOLERANT (like REPLAY, but leaves out choices that are not enabled).
        seed: Of the scheduler.
        choices: int32 entities: agent a is a, link source * world + destination is agents + that, the timeout of agent
            a is agents + world**2 + a.
        early_timeout: Probability, in 2**-32, that a step is the timeout of a waiting agent although others could move.
        max_steps: Gives up after so many; None: as many as the program can take.
        pct_depth: Of PCT: d - 1 steps, drawn over the program's length, demote the agent that would move there
            (Burckhardt et al., ASPLOS 2010).

    Returns:
        DONE, HANG, STEP_LIMIT or DIVERGED (a choice was not enabled; `st.counts[C_STEPS]` says where).

    Raises:
        LabError: `pct_depth` is less than 1.
    """
    chosen = np.zeros(0, np.int32) if choices is None else np.ascontiguousarray(choices, np.int32)
    limit = 2 * len(s.ops) if max_steps is None else max_steps
    points, totals = new_change_points(pct_depth), new_totals()
    return int(_runs(s, st, log, policy, seed, 1, chosen, points, early_timeout, limit, False, totals))


def batch(
    s: Static,
    st: State,
    log: Log,
    policy: int,
    seed: int,
    count: int,
    early_timeout: int = 0,
    stop_on_wrong: bool = True,
    pct_depth: int = PCT_DEPTH,
) -> np.ndarray:
    """Run seeds `seed`, `seed + 1`, ... `seed + count - 1` (see `run`); returns the totals, indexed by T_*."""
    points, totals = new_change_points(pct_depth), new_totals()
    none = np.zeros(0, np.int32)
    limit = 2 * len(s.ops)
    _runs(s, st, log, policy, seed, count, none, points, early_timeout, limit, stop_on_wrong, totals)
    return totals


def movable(s: Static, st: State) -> list[int]:
    """What can be chosen next, in order: what can move; where nothing can, a bounded wait that gives up."""
    agents = len(st.pc)
    enabled = sorted(st.enabled[: st.counts[C_ENABLED]].tolist())
    movable = [entity for entity in enabled if entity >= agents or not is_stale(s, st, entity)]
    timeouts = range(agents + s.world * s.world, len(st.priority))
    return movable or [entity for entity in timeouts if _may_choose(s, st, entity)]
