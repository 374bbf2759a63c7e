"""What the engines of all memory models share: who can move, who moves next, how a run ends, and what a batch adds up.

`machine` (sc, posted) and `weak` say what a step does and when an agent can make one; the rest of a scheduler is here,
once. Functions are inlined into the loop of each engine (`forceinline`). They work on the fields that both `State`s
have (`pc`, `status`, `enabled`, `place`, `priority`, `unsettled`, `counts`, ...), whatever else these hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lab.errors import LabError
from lab.protocol import tables as t
from lab.sim.machine import words

# How a run ended.
DONE, HANG, STEP_LIMIT, DIVERGED = range(4)
# What picks the next step.
RANDOM, REPLAY, RUN_ON, PCT, TOLERANT = range(5)
# What an agent's next operation is: not looked at, one that can be made, a wait for one word, a fence or read behind
# stores under way, a wait for several words or for packets, none.
NO_MOVE, READY, PARKED, DRAINING, POLLING, FINISHED = range(6)
# Positions in State.counts; each engine adds its own behind them.
C_ENABLED, C_STEPS, C_WRONG, C_WRONG_OPS, C_TIMEOUTS, C_OPS, C_POLLERS, C_UNSETTLED, C_ABORTS = range(9)
# Totals of `batch`: runs, those with a wrong element, without an end, with an agent that gave up and returned;
# operations; runs that fail in any way, and those with a wrong element and no abort that may explain it; then the first
# seed that fails in any way, and the first that is wrong without an abort, hangs, aborts; -1: none.
T_RUNS, T_WRONG, T_HANGS, T_ABORTS, T_OPS, T_FAILING, T_SILENT = range(7)
T_FIRST, T_FIRST_WRONG, T_FIRST_HANG, T_FIRST_ABORT = range(7, 11)
PCT_DEPTH = 3  # unless a run asks for another
LEVEL_NONE, LEVEL_CHOICES, LEVEL_FULL = range(3)


class Log(NamedTuple):
    """What a run leaves behind. Arrays of length 1 are not written (LEVEL_NONE)."""

    level: int
    choice: np.ndarray  # entity chosen at each step
    op: np.ndarray  # row of ops executed at each step, -1: a delivery, -2: a timeout
    seen: np.ndarray  # step whose write a word read saw, -1: initial
    value: np.ndarray  # word read or written
    row: np.ndarray  # word id, or row of moves
    reads: np.ndarray  # step that wrote each cell read, by Static.reads_at
    wrote: np.ndarray  # fingerprint written to each cell, by Static.pending_at
    wrong: np.ndarray  # (row of ops, item) of wrong elements, in the order found


def new_log(s: NamedTuple, level: int) -> Log:
    """Allocate the log of a run: nothing, the choices, or everything that the race check and the explanation need.

    `s` is the Static of any engine.
    """
    steps = 2 * len(s.ops) + 1 if level else 1  # type: ignore[attr-defined]
    full = steps if level == LEVEL_FULL else 1
    expects = s.moves[:, t.M_COUNT][s.moves[:, t.M_VALUES] >= 0].sum()  # type: ignore[attr-defined]
    return Log(
        level=level,
        choice=np.zeros(steps, np.int32),
        op=np.zeros(full, np.int32),
        seen=np.zeros(full, np.int32),
        value=np.zeros(full, np.int64),
        row=np.zeros(full, np.int32),
        reads=np.full(int(s.reads_at[-1]) + 1 if level == LEVEL_FULL else 1, -1, np.int32),  # type: ignore[attr-defined]
        wrote=np.zeros(int(s.pending_at[-1]) + 1 if level == LEVEL_FULL else 1, np.uint64),  # type: ignore[attr-defined]
        wrong=np.zeros((int(expects) + 1 if level == LEVEL_FULL else 1, 2), np.int32),
    )


# ---- random numbers


@njit(forceinline=True, cache=True, _nrt=False)
def next_random(x):
    """xorshift64* (Vigna 2016), one step."""
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    return x


@njit(forceinline=True, cache=True, _nrt=False)
def below(x, n):
    """A number in 0..n-1 from the high bits of the scrambled state."""
    high = (x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32)
    return np.int64((high * np.uint64(n)) >> np.uint64(32))


@njit(forceinline=True, cache=True, _nrt=False)
def seeded(seed):
    """The state of the generator under a seed."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x1234567)
    if x == np.uint64(0):
        x = np.uint64(1)
    for _ in range(4):
        x = next_random(x)
    return x


# ---- who can move


@njit(forceinline=True, cache=True, _nrt=False)
def enable(st, entity):
    """`entity` can move from now on."""
    if st.place[entity] < 0:
        st.place[entity] = st.counts[C_ENABLED]
        st.enabled[st.counts[C_ENABLED]] = entity
        st.counts[C_ENABLED] += 1


@njit(forceinline=True, cache=True, _nrt=False)
def disable(st, entity):
    """`entity` cannot move any more."""
    at = st.place[entity]
    if at >= 0:
        last = st.counts[C_ENABLED] - 1
        other = st.enabled[last]
        st.enabled[at] = other
        st.place[other] = at
        st.place[entity] = -1
        st.counts[C_ENABLED] = last


@njit(forceinline=True, cache=True, _nrt=False)
def unsettle(st, agent):
    """Something has changed for an agent: its next operation has to be looked at before the next choice."""
    st.unsettled[st.counts[C_UNSETTLED]] = agent
    st.counts[C_UNSETTLED] += 1


@njit(forceinline=True, cache=True, _nrt=False)
def wake_pollers(st):
    """Agents that wait for several words or for packets have to look again."""
    for agent in range(len(st.pc)):
        if st.status[agent] == POLLING:
            st.status[agent] = NO_MOVE
            st.counts[C_POLLERS] -= 1
            unsettle(st, agent)


@njit(forceinline=True, cache=True, _nrt=False)
def to_visible(s, st, agent):
    """Run an agent's register arithmetic and branches, which are no steps; returns the row where it then stands."""
    pc = st.pc[agent]
    while pc < s.agent_end[agent]:
        kind = s.ops[pc, t.KIND]
        if kind == t.SET:
            st.registers[agent, s.ops[pc, t.DST]] = words.operand(
                s.exprs, s.postfix, s.ops[pc, t.VALUE], st.registers, agent
            )
            pc += 1
        elif kind == t.BRANCH:
            cond = s.ops[pc, t.VALUE]
            if cond >= 0 and words.operand(s.exprs, s.postfix, cond, st.registers, agent):
                pc += 1
            else:
                pc = s.ops[pc, t.TARGET]
        elif kind == t.NOP:
            pc += 1
        else:
            break
    st.pc[agent] = pc
    return pc


@njit(forceinline=True, cache=True, _nrt=False)
def may_time_out(s, st, agent):
    """Whether an agent stands at a bounded wait that is not met."""
    waiting = st.place[agent] < 0 and (st.status[agent] == PARKED or st.status[agent] == POLLING)
    return waiting and s.ops[st.pc[agent], t.TARGET] >= 0


@njit(cache=True, _nrt=False)
def timed_out(s, st, x, early):
    """A waiting agent that gives up, chosen at random among those with a bound; -1: none has one.

    `early`: others could still move, so that only a bound on polls can be reached, not one in seconds.
    """
    count = 0
    for agent in range(len(st.pc)):
        count += may_time_out(s, st, agent) and not (early and s.ops[st.pc[agent], t.CLOCK] > 0)
    if count == 0:
        return -1
    wanted = below(x, count)
    for agent in range(len(st.pc)):
        if may_time_out(s, st, agent) and not (early and s.ops[st.pc[agent], t.CLOCK] > 0):
            if wanted == 0:
                return agent
            wanted -= 1
    return -1


@njit(forceinline=True, cache=True, _nrt=False)
def give_up(s, st, agent):
    """An agent's bounded wait gives up: its handler comes next. That is an abort if the agent returns after it."""
    st.counts[C_TIMEOUTS] += 1
    st.counts[C_ABORTS] += s.ops[st.pc[agent], t.RESUMES] == 0
    st.pc[agent] = s.ops[st.pc[agent], t.TARGET]
    unsettle(st, agent)


@njit(cache=True, _nrt=False)
def stopped(s, st):
    """HANG or DONE, when nothing can move. A kernel that was never launched waits at its first operation."""
    for agent in range(len(st.pc)):
        launched = s.agent_host[agent] or st.pc[agent] != s.agent_start[agent]
        if st.status[agent] != FINISHED and launched:
            return HANG
    return DONE


# ---- who moves next


@njit(forceinline=True, cache=True, _nrt=False)
def highest(st):
    """The entity of the highest priority among those that can move."""
    best = np.int64(st.enabled[0])
    for k in range(1, st.counts[C_ENABLED]):
        if st.priority[st.enabled[k]] > st.priority[best]:
            best = np.int64(st.enabled[k])
    return best


@njit(forceinline=True, cache=True, _nrt=False)
def lowest(st):
    """The first entity that can move."""
    best = np.int64(st.enabled[0])
    for k in range(1, st.counts[C_ENABLED]):
        best = min(best, np.int64(st.enabled[k]))
    return best


@njit(forceinline=True, cache=True, _nrt=False)
def prioritise(st, x):
    """Give every entity a priority above those of change points; returns the next state of the generator."""
    for entity in range(len(st.priority)):
        x = next_random(x)
        st.priority[entity] = below(x, 1 << 30) + (1 << 20)
    return x


@njit(forceinline=True, cache=True, _nrt=False)
def demoted(st, change_points, step, chosen):
    """`chosen`, or where `step` is a change point who moves instead, now that its priority is low."""
    for k in range(len(change_points)):
        if change_points[k] == step:
            st.priority[chosen] = len(change_points) - k
            chosen = highest(st)
    return chosen


@njit(forceinline=True, cache=True, _nrt=False)
def draw_change_points(points, seed, length):
    """Change points of PCT, uniform over the operations (Burckhardt et al., ASPLOS 2010, section 3)."""
    x = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(99)
    for p in range(len(points)):
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        points[p] = np.int64((x >> np.uint64(33)) % np.uint64(max(length, 1)))


def new_change_points(depth: int) -> np.ndarray:
    """Room for the change points of PCT at a depth.

    Raises:
        LabError: The depth is less than 1.
    """
    if depth < 1:
        raise LabError("PCT has no such depth", value=depth, hint="1 runs by priority alone, d changes it d - 1 times")
    return np.zeros(depth - 1, np.int64)


# ---- runs


def new_totals() -> np.ndarray:
    """Totals of no run."""
    totals = np.zeros(11, np.int64)
    totals[T_FIRST:] = -1
    return totals


@njit(forceinline=True, cache=True, _nrt=False)
def add_up(st, totals, seed, outcome):
    """Add a run to the totals of its batch."""
    add_outcome(totals, seed, st.counts[C_WRONG] > 0, outcome == HANG, st.counts[C_ABORTS] > 0, st.counts[C_OPS])


@njit(forceinline=True, cache=True, _nrt=False)
def add_outcome(totals, seed, wrong, hangs, aborts, ops):
    """Add a run that went wrong, hung, aborted or none of these to the totals of its batch."""
    silent = wrong and not aborts
    totals[T_RUNS] += 1
    totals[T_WRONG] += wrong
    totals[T_HANGS] += hangs
    totals[T_ABORTS] += aborts
    totals[T_OPS] += ops
    totals[T_FAILING] += wrong or hangs or aborts
    totals[T_SILENT] += silent
    if (wrong or hangs or aborts) and totals[T_FIRST] < 0:
        totals[T_FIRST] = seed
    if silent and totals[T_FIRST_WRONG] < 0:
        totals[T_FIRST_WRONG] = seed
    if hangs and totals[T_FIRST_HANG] < 0:
        totals[T_FIRST_HANG] = seed
    if aborts and totals[T_FIRST_ABORT] < 0:
        totals[T_FIRST_ABORT] = seed


def sum_of_totals(rows: np.ndarray) -> np.ndarray:
    """The totals of several batches (int64, one a row) as those of one."""
    total = rows.sum(axis=0) if len(rows) else new_totals()
    for column in range(T_FIRST, rows.shape[1]):
        seeds = rows[:, column][rows[:, column] >= 0]
        total[column] = seeds.min() if len(seeds) else -1
    return total
