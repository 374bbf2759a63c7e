"""vllm-rdna 53b0b10de: every call returns the same output buffer.

The caller still holds the result of a call when the next call overwrites it. One rank alone shows it.
Missing: a lifetime. No wait can repair it, since the kernels are in order.
Fix: an output per call.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank, only, publish_and_pull
from lab.protocol.write import UNCACHED, Block, Declare, Host, protocol


def memory(m: Declare) -> None:
    """The shared buffer and the flags."""
    m.payload("shared", m.max_elements, UNCACHED)
    flag_per_block_and_rank(m, "start", "end")


def results_are_kept(h: Host) -> None:
    """The caller reads all results after the last call."""
    results, kept = h.output(h.config.max_bytes, "result"), []
    for nbytes in h.sizes():
        x = h.input(nbytes)
        out = h.output(nbytes) if h.options["output_per_call"] else results
        h.launch(x, out)
        kept.append((x, out[: x.elements]))
    h.sync()
    for x, out in kept:
        h.expect(out, x)


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"results_are_kept": results_are_kept},
    accepts=only("results_are_kept"),
    world=1,
    bytes=512,
    calls=2,
    options={"output_per_call": False},
)
def vllm_rdna_53b0b10de(b: Block) -> None:
    """A sound one-shot; without `output_per_call`, all its results share one buffer."""
    publish_and_pull(b, [b.on(j).shared[: b.elements] for j in range(b.world)])
