# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A desync at small gates
#
# The two-shot all-reduce of rdna_ar gave wrong sums in its boot self-test when the largest message that it may take,
# its *gate*, was 64 or 128 KiB. At 1 MiB and 20 MiB the same self-test passed. This notebook follows the defect from
# that table to the two pairs of memory accesses behind it, changes one line for each, and watches the verdict turn
# `ok`. Then it is your turn.
#
# Everything here runs on a CPU. Nothing is measured on a GPU; what is called simulated comes from a timing model.

# %%
# %matplotlib inline
import pandas as pd

from lab.plots.story import story
from lab.plots.timeline import timeline
from lab.protocol.library import load
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    DEVICE,
    KIB,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    protocol,
)
from lab.sim.check import check, witnesses
from lab.sim.timing.gates import gate_table

# %% [markdown]
# ## 1. The table that looks like a defect of small messages
#
# Four ranks run the boot self-test: constant inputs, 30.0 due in every element of the third trial, an exact
# comparison after every call. All columns but the last are simulated.

# %%
rows = gate_table("pcie_v620", gates=(32, 64, 128, 512, 20480), modes=("self_test",), runs=4)
pd.set_option("display.max_colwidth", None)
pd.DataFrame(
    {
        "gate, KiB": row.gate_kib,
        "self-tests that fail": f"{row.fail_share:.0%}",
        "mean, 30.0 due": f"{row.mean:.2f}" if row.mean else "",
        "wrong elements": f"{row.wrong_share:.2%}",
        "reported on 4x V620": row.reference.text if row.reference else "",
    }
    for row in rows
).set_index("gate, KiB")

# %%
fails = {row.gate_kib: row.fail_share for row in rows}
assert fails[64] > 0 and fails[128] > 0
assert fails[20480] == 0

# %% [markdown]
# The smaller the gate, the more is wrong; at 20 MiB nothing is. One could conclude that large messages are safe. The
# race check says otherwise. It needs one execution and no luck: it asks of any two accesses to the same elements
# whether a chain of flags and fences orders them.

# %%
seed = load("seed_two_shot")
verdicts = {
    size: check(seed, seed.config(bytes=(size * KIB,), calls=2), executions=2, minimise=False) for size in (64, 1024)
}
for size, verdict in verdicts.items():
    print(f"{size} KiB: {[(race.first.phase, race.second.phase, race.pairs) for race in verdict.races]}")

# %%
assert all(len(verdict.races) == 2 for verdict in verdicts.values())

# %% [markdown]
# Two kinds of pairs, at 64 KiB and at 1 MiB alike. The gate changes the odds, not the defect.
#
# ## 2. The two defects, drawn
#
# For each kind the lab looks for the smallest execution in which it makes a value wrong. Lanes are blocks, bars move
# data, arrows are flags. The two accesses that nothing orders are red.

# %%
found = sorted(witnesses(seed, seed.config(world=2, blocks=2, calls=2)), key=lambda pair: pair[1].config.calls)
(race_1, d1), (race_2, d2) = found
timeline(d1.explainer, d1.fault, title="D1: elements are sent before another block has reduced them")

# %%
timeline(d2.explainer, d2.fault, title="D2: the next call overwrites what a slower rank still has to read")

# %%
inside, across = story(d1.explainer, d1.fault), story(d2.explainer, d2.fault)
assert (inside.write_access.phase, inside.read_access.phase) == ("reduce", "allgather")
assert (across.read_access.phase, across.write_access.phase) == ("copy out", "scatter")
assert d1.config.calls == 1 and d2.config.calls == 2

# %% [markdown]
# D1 lives inside one call. The reduce deals out single elements, the allgather deals out vectors of eight, so a block
# sends elements that other blocks reduce; a block barrier does not reach them. In a large message a thread sends long
# after the others have reduced, and the odds of a wrong element fall.
#
# D2 needs two calls. The allgather uses the slots of the other parity, which the scatter of the next call writes. A
# test that waits for the device after every call cannot see it.
#
# ## 3. The same protocol in your own words
#
# A protocol says what one block does in one call, in the order in which it does it. Python is the macro language:
# loops and ifs over rank, block and size are ordinary Python. This one is the two-shot again, in a page. The two
# lines on trial stand on top.

# %%
REDUCE_VECTOR = 1  # elements a thread reduces at a time; the pushes move vectors of 8


def gather(b, owner, source, p):
    return b.on(owner).staging[1 - p, source]  # where `source` puts its reduced part on rank `owner`


# %%
def memory(m):
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.payload("gathered", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flags", 16, UNCACHED, row=2)
    m.words("arrived", 2)


def tell_everyone(b, row):
    """When all blocks of this rank are here, block 0 tells the peers; every block waits for all peers."""
    b.leader.fence(ACQ_REL, SYSTEM)
    b.leader.add(b.mine.arrived[row], 1, RELAXED, DEVICE)
    if b.block == 0:
        b.leader.wait(b.mine.arrived[row], ">=", b.call * b.blocks, ACQUIRE, DEVICE)
        for j in b.peers:
            b.leader.store(b.on(j).flags[row, b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.flags[row, j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()


@protocol(memory=memory, blocks=4, bytes=8 * KIB, calls=3, world=2)
def my_two_shot(b):
    """Two-shot all-reduce: scatter, reduce the own part, gather the parts of the others."""
    part = b.elements // b.world
    chunk = [slice(j * part, (j + 1) * part) for j in range(b.world)]
    mine, p = chunk[b.rank], b.call % 2

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input[chunk[j]], b.on(j).staging[p, b.rank][:part], vector=8)
    b.barrier()
    tell_everyone(b, row=0)

    b.phase("reduce")
    terms = [b.input[mine] if j == b.rank else b.mine.staging[p, j][:part] for j in range(b.world)]
    b.reduce(terms, b.output[mine], vector=REDUCE_VECTOR)
    b.barrier()

    b.phase("allgather")
    for j in b.peers:
        b.copy(b.output[mine], gather(b, j, b.rank, p)[:part], vector=8)
    b.barrier()
    tell_everyone(b, row=1)

    b.phase("copy out")
    for j in b.peers:
        b.copy(gather(b, b.rank, j, p)[:part], b.output[chunk[j]], vector=8)


# %% [markdown]
# `isolated` is what a self-test does: the host waits after every call. `back_to_back` is what a model does: calls are
# queued.


# %%
def judge(one):
    """The verdict on a protocol as it stands now, for both ways of calling it."""
    judged = {}
    for scenario in ("isolated", "back_to_back"):
        verdict = check(one, one.config(scenario=scenario), executions=20, minimise=False)
        kinds = sorted({f"{race.first.phase} / {race.second.phase}" for race in verdict.races})
        judged[scenario] = verdict.verdict
        print(f"{scenario:<13} {verdict.verdict:<6} {', '.join(kinds)}")
    return judged


assert judge(my_two_shot) == {"isolated": "wrong", "back_to_back": "wrong"}

# %% [markdown]
# ## 4. One line
#
# Let a thread reduce the vectors that it will send.

# %%
REDUCE_VECTOR = 8

after_one_line = judge(my_two_shot)
assert after_one_line["isolated"] == "ok"

# %% [markdown]
# With that one line every isolated call is right, and a self-test would be content. Back to back the second defect is
# still there: it has nothing to do with the first. It takes a line of its own: a region that no scatter writes.


# %%
def gather(b, owner, source, p):  # noqa: F811
    return b.on(owner).gathered[p, source]


assert judge(my_two_shot) == {"isolated": "ok", "back_to_back": "ok"}

# %% [markdown]
# What an `ok` covers, and what it does not, is part of the verdict:

# %%
print(check(my_two_shot, executions=20).proof)

# %% [markdown]
# ## 5. Now yours
#
# A small one-shot to edit: every rank pushes its input to all others, raises a flag, waits for theirs, and reduces.
# It is right as it stands. Take the parity away (`p = 0`), drop the wait, move the store in front of the copy, or
# replace it all by your own kernel, and run both cells again. In a file `my_protocol.py` the same text is checked
# with `lab check my_protocol.py:mine`.


# %%
def slots(m):
    m.payload("inbox", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("ready", m.world, UNCACHED)


@protocol(memory=slots, blocks=1, bytes=4 * KIB, calls=3, world=2)
def mine(b):
    """One-shot all-reduce with one block."""
    p = b.call % 2

    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[p, b.rank], vector=8)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)

    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[p, j] for j in range(b.world)], b.output, vector=8)


# %%
verdict = check(mine, executions=200)
print(verdict.verdict)
for race in verdict.races:
    print(race)

# %% [markdown]
# If there is a race, this draws it.

# %%
drawn = [witness for _, witness in witnesses(mine, mine.config()) if witness]
timeline(drawn[0].explainer, drawn[0].fault) if drawn else "nothing to draw: no race"
