# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which kernel, which launch shape
#
# A call has three choices: the kernel, the blocks and the threads. `experiments/how_fast_are_the_kernels/run.py --tune`
# times many of them on the machine at hand, inside a CUDA graph, beside NCCL and torch's symmetric memory. This
# notebook reads its report and makes the table that the communicator uses.
#
# The report kept here is from 2 x NVIDIA H200; **no figure in it is an AMD one**. For your machine, run the experiment
# there and change the one line that names the report.

# %%
# %matplotlib inline
import json
from pathlib import Path

import pandas as pd

from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.strategy import MEASURED, Room
from lab.kernels.tuning import measured, tuned
from lab.plots.tuning import tuning_figure

REPORT = Path("../experiments/how_fast_are_the_kernels/results/speed_2_gpus_tune.json")  # <- yours

report = json.loads(REPORT.read_text())
points = measured(report)
print(f"{report['machine']}, {report['date']}: {len(points)} launches timed\n{report['command']}")

# %% [markdown]
# ## The surface
#
# One column a kernel, one row a block size. Colour is time over the fastest launch of that message size, a red star is
# the fastest itself, white was not tried. With two ranks one_shot and two_shot send the same bytes, so two_shot's
# second meeting is all loss there.

# %%
tuning_figure(points, report["machine"])

# %% [markdown]
# ## From the surface to a table
#
# `tuned` takes the fewest bands of sizes that stay within a tolerance of the fastest launch at every size. More
# tolerance, fewer bands: what does it cost?

# %%
room = Room(MAX_BLOCKS, 132 * 2048)  # an H200: 132 multiprocessors of 2048 threads, one rank each
strategies = {
    t: tuned(points, world=2, room=room, source=report["machine"], tolerance=t) for t in (0.0, 0.03, 0.1, 0.3)
}
pd.Series({tolerance: len(strategy.bands) for tolerance, strategy in strategies.items()}, name="bands")

# %%
EVERY_SIZE = 1 << 62  # bytes; a band up to here, or above, takes whatever the staging holds


def shown(bands):
    """The bands as a table; the last ones have no largest message."""
    return pd.DataFrame(
        [vars(band) | {"max_bytes": "any" if band.max_bytes >= EVERY_SIZE else band.max_bytes} for band in bands]
    )


strategy = strategies[0.03]
shown(strategy.bands)

# %% [markdown]
# ## What it gives
#
# Time of the strategy's launch, beside the fastest launch and the best peer of the same run. `ratio` is ours over that
# peer.

# %%
layout = Layout(2, 64 << 20, 64 << 20, 64 << 20)
fastest = {size: min(p.us for p in points if p.bytes == size) for size in sorted({p.bytes for p in points})}
took = {(p.bytes, p.plan): p.us for p in points}
rows = []
for row in report["rows"]:
    size = row["bytes"]
    plan = strategy.plan(size, layout, room)
    peer = min(row["peers"], key=lambda name: row["peers"][name] or float("inf"))
    us = took[size, plan]
    rows.append((size, f"{plan.algorithm} {plan.blocks}x{plan.threads}", us, fastest[size], peer, row["peers"][peer]))
table = pd.DataFrame(rows, columns=["bytes", "launch", "us", "fastest", "best peer", "peer us"]).set_index("bytes")
table["ratio"] = (table["us"] / table["peer us"]).round(3)
assert (table["us"] <= 1.03 * table["fastest"]).all()
table

# %% [markdown]
# ## Into production
#
# The communicator looks its table up by architecture and world (`MEASURED` in `lab/kernels/strategy.py`). Put the bands
# there with the measurement as their source, and they are what `algorithm="auto"` uses.

# %%
for (architecture, world), known in MEASURED.items():
    print(architecture, world, known.source)
    print(shown(known.bands).to_string(index=False))
