"""Memory model `weak`: stores become visible one by one, in any order that release and acquire do not forbid.

It runs the same tables as `interleaved`, under the same policies, and leaves the same log. Payload and words have
*histories*: every store is a message in the modification order of its cell or word. An agent knows what happened
before it as a vector clock. Then

* a load reads any message that is not older than one the agent must know: one whose store, or whose reading by
  another, happened before (RC11, coherence). Reading an older one than the newest is a stale cache or a store still
  under way;
* a store takes any place in the modification order after those messages: one that is not last has been overtaken on
  its way;
* a read-modify-write takes the place right behind the message that it reads, and nothing comes between (RC11,
  atomicity);
* release, acquire, fences and release sequences pass clocks on exactly as in `races`, within scopes that include each
  other (LLVM AMDGPU memory model). Order is transitive: a block barrier makes a wave's later release cover the stores
  of the other waves.

Loads execute in program order, so no value comes from the future: no load buffering, as in RC11. Waves issue in order
and a store of payload waits for the loads that it stores, which is why this is close to the hardware.

Order says what may be read. *Visibility* says what a poll must see in the end, and only waits ask for it: see
`weak_history.visible`. A wait that only an invisible or an overwritten message meets may be let go (the line may be
evicted, the copy refreshed), but need not: when nothing else can move, that is a hang. A wait bounded in seconds, which
gives up only then, outlasts every delay: see `weak_history.arrive`.

`weak_state.py` has the arrays, `weak_history.py` what a history says, `weak_steps.py` what one step does; here is the
loop over steps. Each choice of a step is an entity of its own, beyond those of `interleaved`, so that schedules are
lists of entities here too: see `run`.

What limits it: on small programs, the walk along one history a step; on real geometry, appending messages of payload.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.sim.machine import weak_history as h
from lab.sim.machine.scheduler import (  # noqa: F401 (`new_log` belongs to an engine: see `engines`)
    C_ENABLED,
    C_STEPS,
    C_WRONG,
    DIVERGED,
    DONE,
    HANG,
    LEVEL_NONE,
    NO_MOVE,
    PCT,
    PCT_DEPTH,
    RANDOM,
    REPLAY,
    STEP_LIMIT,
    TOLERANT,
    Log,
    add_up,
    below,
    demoted,
    draw_change_points,
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
    timed_out,
    unsettle,
)
from lab.sim.machine.weak_state import C_CELLS, C_MAYBE, C_WORDS, State, Static, new_state, static  # noqa: F401
from lab.sim.machine.weak_steps import move_on, settle_all, valid

# ---- runs


@njit(cache=True, _nrt=False)
def reset(s, st):
    """The state at the start."""
    for k in range(len(st.word_head)):
        st.word_head[k] = k
        st.waiter[k] = -1
    for k in range(len(st.cell_head)):
        st.cell_head[k] = k
    for k in range(len(st.ticks)):
        st.ticks[k] = 0
        for rank in range(st.written_back.shape[0]):
            st.written_back[rank, k] = 0
    for k in range(len(st.counts)):
        st.counts[k] = 0
    st.counts[C_WORDS], st.counts[C_CELLS] = len(st.word_head), len(st.cell_head)
    for agent in range(len(st.pc)):
        st.pc[agent] = s.agent_start[agent]
        st.status[agent] = NO_MOVE
        st.place[agent] = st.maybe_place[agent] = st.next_waiter[agent] = -1
        for k in range(st.clock.shape[1]):
            st.clock[agent, k] = 0
        for k in range(st.registers.shape[1]):
            st.registers[agent, k] = 0
        for level in range(4):
            st.fence[agent, level] = -1
            if s.fences:
                for k in range(st.clock.shape[1]):
                    st.pending[agent, level, k] = 0
    for agent in range(len(st.pc) - 1, -1, -1):
        unsettle(st, agent)


# ---- entities: see `run`


@njit(forceinline=True, cache=True, _nrt=False)
def hang_entity(s, st):
    """The entity that ends an execution in which agents can go on only by luck."""
    return 2 * len(st.pc) + s.world * s.world


@njit(forceinline=True, cache=True, _nrt=False)
def timeout_entity(s, st, agent):
    """The entity that lets an agent's bounded wait give up."""
    return len(st.pc) + s.world * s.world + agent


@njit(forceinline=True, cache=True, _nrt=False)
def entity_of(s, st, agent, choice):
    """The entity of a choice of an agent's next operation."""
    return agent if choice == 0 else hang_entity(s, st) + 1 + (choice - 1) * len(st.pc) + agent


@njit(forceinline=True, cache=True, _nrt=False)
def meant(s, st, entity):
    """(agent, choice, whether it gives up) of an entity other than `hang_entity`; the agent may not exist."""
    agents, hang = len(st.pc), hang_entity(s, st)
    if entity > hang:
        return (entity - hang - 1) % agents, 1 + (entity - hang - 1) // agents, False
    if entity >= hang - agents:
        return entity - (hang - agents), np.int64(0), True
    return entity, np.int64(0), False


@njit(cache=True, _nrt=False)
def _may_choose(s, st, entity):
    """Whether an entity can be chosen now."""
    if entity == hang_entity(s, st):
        return st.counts[C_ENABLED] == 0 and st.counts[C_MAYBE] > 0
    agent, choice, gives_up = meant(s, st, entity)
    if agent < 0 or agent >= len(st.pc) or choice >= h.MAX_CHOICES:
        return False
    if gives_up:
        return may_time_out(s, st, agent)
    return (st.place[agent] >= 0 or st.maybe_place[agent] >= 0) and valid(s, st, agent) >> choice & 1 == 1


@njit(cache=True, _nrt=False)
def final(st):
    """The last message of every word and cell is what memory holds in the end."""
    for k in range(len(st.word)):
        st.word[k] = st.words[st.word_head[k], h.VALUE]
    for k in range(len(st.cell)):
        st.cell[k] = np.uint64(st.cells[st.cell_head[k], h.VALUE])


@njit(forceinline=True, cache=True, _nrt=False)
def _highest_of_all(st):
    """As `highest`, among those that only luck lets go, too."""
    best = highest(st)
    for k in range(st.counts[C_MAYBE]):
        if st.priority[st.maybe[k]] > st.priority[best]:
            best = np.int64(st.maybe[k])
    return best


@njit(forceinline=True, cache=True, _nrt=False)
def _run(s, st, log, policy, seed, choices, change_points, early_timeout, max_steps, stop_on_wrong):
    reset(s, st)
    x = seeded(seed)
    stale = (0, 1 << 13, 1 << 15, 1 << 16)[below(x, 4)]
    if policy == PCT:
        x = prioritise(st, x)
    step = np.int64(0)
    cursor = np.int64(0)
    current = np.int64(-1)
    while True:
        settle_all(s, st)
        st.counts[C_STEPS] = step
        n, n_maybe = st.counts[C_ENABLED], st.counts[C_MAYBE]
        x = next_random(x)
        agent, choice, gives_up = np.int64(-1), np.int64(0), False
        if policy == TOLERANT:
            while cursor < len(choices) and not _may_choose(s, st, np.int64(choices[cursor])):
                cursor += 1
        if (policy == REPLAY or policy == TOLERANT) and cursor < len(choices):
            entity = np.int64(choices[cursor])
            cursor += 1
            if not _may_choose(s, st, entity):
                return DIVERGED
            if entity == hang_entity(s, st):
                for k in range(n_maybe):
                    st.maybe_place[st.maybe[k]] = -1
                st.counts[C_MAYBE] = 0
                return HANG
            agent, choice, gives_up = meant(s, st, entity)
        elif n == 0:
            agent = timed_out(s, st, x, False)
            gives_up = agent >= 0
            x = next_random(x)
            if n_maybe and (policy == RANDOM or policy == PCT) and below(x, 4) == 0:
                x = next_random(x)
                agent, gives_up = np.int64(st.maybe[below(x, n_maybe)]), False
            elif agent < 0:
                return stopped(s, st)
        elif early_timeout > 0 and below(x, 1 << 32) < early_timeout and timed_out(s, st, x, True) >= 0:
            x = next_random(x)  # the number that made it a timeout is small, so it cannot also say whose
            agent, gives_up = timed_out(s, st, x, True), True
        elif policy == RANDOM:
            k = below(x, n + n_maybe)
            agent = np.int64(st.enabled[k]) if k < n else np.int64(st.maybe[k - n])
        elif policy == PCT:
            first = _highest_of_all(st) if below(x, 4) == 0 else highest(st)
            agent = demoted(st, change_points, step, first)
        else:
            agent = current if current >= 0 and st.place[current] >= 0 else lowest(st)
        if step >= max_steps:
            return STEP_LIMIT
        if (policy == RANDOM or policy == PCT) and stale > 0:
            x = next_random(x)
            choice = np.int64(-1)
        current = agent
        choice = move_on(s, st, log, agent, step, choice, gives_up, x, stale)
        if log.level != LEVEL_NONE:
            log.choice[step] = timeout_entity(s, st, agent) if gives_up else entity_of(s, st, agent, choice)
        step += 1
        st.counts[C_STEPS] = step
        if stop_on_wrong and st.counts[C_WRONG]:
            return DONE


@njit(nogil=True, cache=True, _nrt=False)
def _runs(s, st, log, policy, seed, count, choices, change_points, early_timeout, max_steps, stop_on_wrong, totals):
    outcome = np.int64(DONE)
    for k in range(seed, seed + count):
        if policy == PCT:
            draw_change_points(change_points, k, len(s.ops))
        outcome = _run(s, st, log, policy, k, choices, change_points, early_timeout, max_steps, stop_on_wrong)
        if log.level != LEVEL_NONE:
            final(st)
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
    """Run once from the start; arguments and outcome as `interleaved.run`.

    With a agents, the entities are: agent k, which takes the first choice of its operation (the newest message that
    fits; the place behind the newest; payload read fresh and written last), as in `machine`; world**2 unused ones;
    the timeout of agent k is a + world**2 + k; 2 a + world**2 ends an execution in which agents can go on only by
    luck; choice c > 0 of agent k is 2 a + world**2 + 1 + (c - 1) a + k.

    RANDOM and PCT take choices other than the first with a probability that the seed sets for the whole run: never,
    rarely, half of the time, always. RUN_ON takes first choices only, and no luck.
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
    """Run seeds `seed`, `seed + 1`, ... `seed + count - 1`; returns the totals, indexed by `scheduler.T_*`."""
    points, totals = new_change_points(pct_depth), new_totals()
    none = np.zeros(0, np.int32)
    limit = 2 * len(s.ops)
    _runs(s, st, log, policy, seed, count, none, points, early_timeout, limit, stop_on_wrong, totals)
    return totals


def movable(s: Static, st: State) -> list[int]:
    """What can be chosen next, in order, after a run that its `max_steps` ended."""
    entities = []
    for agent in range(len(st.pc)):
        if st.place[agent] >= 0 or st.maybe_place[agent] >= 0:
            choices = int(valid(s, st, agent))
            entities += [
                int(entity_of(s, st, agent, choice)) for choice in range(h.MAX_CHOICES) if choices >> choice & 1
            ]
    if not st.counts[C_ENABLED]:
        timeouts = [int(timeout_entity(s, st, agent)) for agent in range(len(st.pc)) if may_time_out(s, st, agent)]
        # Where no bounded wait can give up, agents that only luck lets go may also wait for ever.
        entities += timeouts or ([int(hang_entity(s, st))] if entities else [])
    return sorted(entities)
