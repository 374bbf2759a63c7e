# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where a call spends its time: simulated beside recorded
#
# The kernels stamp their phases when they are built with `trace=True` (`lab/kernels/hip/trace.hpp`); the timing model
# runs the same protocol in time. Both give a `Trace`: who was in which phase when. Here they stand side by side.
#
# The recorded traces are from 2 x NVIDIA H200 (`experiments/where_does_a_call_spend_its_time`); **no figure here is an
# AMD one**. What is called simulated is as good as the preset that it was simulated with.

# %%
# %matplotlib inline
from pathlib import Path

import pandas as pd

from lab.alignment import align
from lab.compare import compare, durations, skew
from lab.errors import LabError
from lab.kernels.stamps import MEETINGS
from lab.plots.phases import phases_figure
from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.sim.timing.timed_trace import trace_of
from lab.sim.timing.timing import simulate
from lab.trace import Trace

pd.set_option("display.precision", 2)
RESULTS = Path("../experiments/where_does_a_call_spend_its_time/results")
RECORDED, PRESET = RESULTS / "two_shot_64_kib_2_gpus.npz", "h200"  # <- yours

# %% [markdown]
# ## Two clocks
#
# Each GPU stamps with its own clock, and the two differ by far more than a call lasts; they also run at slightly
# different rates. No block leaves a meeting before the same block of its peer has entered it: every meeting bounds the
# clocks from one side. What all of them leave of offset and rate is the uncertainty. A trace of a millisecond says
# nothing of the rate; one of seconds does.

# %%
recorded = Trace.load(RECORDED)
algorithm = recorded.about["algorithm"]
aligned = align(recorded, MEETINGS[algorithm])
print(f"{recorded.machine}, {recorded.about['date']}: {recorded.about['command']}")
print(f"{algorithm}, {recorded.about['bytes']} bytes, {recorded.about['blocks']} x {recorded.about['threads']} threads")
for rank, offset in aligned.offsets.items():
    print(f"rank {rank}: clock {offset / 1e3:+.1f} us, known to {aligned.uncertainty[rank] / 1e3:.2f} us either way")
    print(f"  rate {aligned.ppm[rank]:+.1f} ppm, known to {aligned.ppm_uncertainty[rank]:.1f} ppm either way")

# %% [markdown]
# A block that leaves a meeting early fits no clocks, and `align` says so: a check of the real kernel that needs no
# global clock. Here one such block, made up:

# %%
spans = recorded.spans.copy()
early = (spans["rank"] == 1) & (spans["call"] == spans["call"].max()) & (spans["phase"] == 1)
spans["begin"][early] -= 50_000
spans["end"][early] -= 50_000
try:
    align(Trace(spans, recorded.phases, recorded.source, recorded.machine, recorded.about), MEETINGS[algorithm])
    raise AssertionError("the early block was not seen")
except LabError as problem:
    print(problem)

# %% [markdown]
# ## The same call, simulated
#
# The protocol of the same name, at the same size and grid.

# %%
protocol = load(algorithm)
config = protocol.config(
    world=int(recorded.about["world"]),
    bytes=(int(recorded.about["bytes"]),),
    blocks=int(recorded.about["blocks"]),
    dtype="bf16",
    calls=40,
)
run = simulate(compile_tables(protocol.program(config)), PRESET, seed=1, record=1 << 20)
assert run.ok
simulated = trace_of(run)

# %%
phases_figure([simulated, aligned.trace])

# %%
found = compare(simulated, aligned.trace)
print("the first phase whose middle 80 % do not overlap:", found.first_difference)
found.table

# %% [markdown]
# ## Waiting is not working
#
# `exchange` differs most, and most of it is waiting: one thread of Python launches on both GPUs in turn, so one rank
# always begins late (`skew of ranks`), and its peer waits in the exchange. The rank that comes last to a meeting waits
# for nothing but the flag. Its time, the least of a meeting's ranks, is what the protocol costs.


# %%
def without_waiting(trace):
    """Median over calls and blocks of the least time that any rank spent in a phase, in us."""
    least = durations(trace).groupby(["phase", "call", "block"])["us"].min()
    return least.groupby("phase").median()


both = pd.DataFrame({"simulated": without_waiting(simulated), "recorded": without_waiting(aligned.trace)})
both["ratio"] = both["recorded"] / both["simulated"]
both.reindex([*recorded.phases])

# %% [markdown]
# ## All of them
#
# The same for every recorded call of one_shot and two_shot: us without waiting. On the H200 the phases that work agree
# within a third. The meetings take two to five times as long as simulated, and longer for larger messages: a release
# waits until every pushed byte is acknowledged, and the preset makes that too cheap.

# %%
rows = []
for path in sorted(RESULTS.glob("*.npz")):
    trace = Trace.load(path)
    about = trace.about
    if about["algorithm"] not in ("one_shot", "two_shot"):
        continue
    one = load(about["algorithm"])
    settings = one.config(world=about["world"], bytes=(about["bytes"],), blocks=about["blocks"], dtype="bf16", calls=20)
    model = trace_of(simulate(compile_tables(one.program(settings)), PRESET, seed=1, record=1 << 20))
    table = pd.DataFrame({"simulated": without_waiting(model), "recorded": without_waiting(trace)})
    table["ratio"] = table["recorded"] / table["simulated"]
    rows.append(pd.concat({f"{about['algorithm']} {about['bytes'] >> 10} KiB": table.reindex([*trace.phases])}))
pd.concat(rows)

# %% [markdown]
# ## Skew
#
# How far apart the ranks begin a call, recorded, in us.

# %%
pd.Series(skew(aligned.trace)).describe()[["min", "50%", "max"]]

# %% [markdown]
# ## Yours
#
# * Your own protocol, simulated: `lab trace my_protocol.py:name --out calls.npz`; `lab compare` takes two such files.
# * A GPU: `python experiments/where_does_a_call_spend_its_time/run.py`, then name its file above.
# * No GPU: `HostRanks(..., trace=True)`, run, `.trace()`: the kernels' phases under the CPU host's scheduler.
# * To look closer, `trace.save("calls.json")`, or `lab trace ... --out calls.json`, and open the file in Perfetto.
