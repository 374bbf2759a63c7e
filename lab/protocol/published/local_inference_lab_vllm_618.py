"""local-inference-lab/vllm#618: one rank throws inside a collective set-up and leaves.

All ranks set up the custom all-reduce: check, exchange handles (a collective), start. One rank's check throws; it
falls back to another backend and never reaches the exchange, where its peers wait for it.
Missing: every rank's arrival at the collective.
Fix: a vote before each collective, by minimum: a rank that has failed votes 0, and then nobody enters.
"""

from __future__ import annotations

from lab.protocol.language.scenario import back_to_back
from lab.protocol.published.shared import flag_per_block_and_rank, only, publish_and_pull
from lab.protocol.write import ACQUIRE, HOST_MAPPED, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, Host, protocol

UNKNOWN, NO, YES = range(3)


def memory(m: Declare) -> None:
    """The shared buffer, the flags, and a vote of every rank."""
    m.payload("shared", m.max_elements, UNCACHED)
    flag_per_block_and_rank(m, "start", "end")
    m.words("vote", m.world, HOST_MAPPED)


def set_up(h: Host) -> None:
    """Rank `throws` fails its check; the others exchange handles and run the calls of the configuration."""
    failed = h.rank == h.options["throws"]
    agreed = h.let(1, "agreed")
    if h.options["vote"]:
        h.phase("vote")
        for j in range(h.world):
            h.store(h.on(j).vote[h.rank], NO if failed else YES, RELEASE, SYSTEM)
        for j in range(h.world):
            h.wait(h.mine.vote[j], "!=", UNKNOWN, ACQUIRE, SYSTEM)
            vote = h.load(h.mine.vote[j], RELAXED, SYSTEM)
            with h.when(vote == NO):
                h.assign(agreed, 0)
    elif failed:
        return
    with h.when(agreed):
        h.phase("exchange of handles")
        h.barrier()
        h.phase("calls")
        back_to_back(h)


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"set_up": set_up},
    accepts=only("set_up"),
    bytes=512,
    options={"vote": False, "throws": 1},
)
def local_inference_lab_vllm_618(b: Block) -> None:
    """A sound one-shot; unless its hosts `vote`, they wait in its set-up for a rank that has left."""
    publish_and_pull(b, [b.on(j).shared[: b.elements] for j in range(b.world)])
