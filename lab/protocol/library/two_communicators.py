"""Two communicators on the same ranks, each on a stream of its own: a GPU must hold blocks of both.

A launch whose successor is placed at once holds room for two while it waits for its peers; one that lets its successor
be placed when it has met them holds room for one. With R slots a GPU (`--resident R`) a communicator is certain to get
on when the others leave it a slot: see `docs/residency.md`.
"""

from __future__ import annotations

from lab.protocol.library.one_shot import one_shot
from lab.protocol.library.staging import abort_record, staging
from lab.protocol.write import AbortWords, Block, Declare, Host, protocol

NAMES = ("", "other_")
CALLS_OF_EACH = 3


def both(m: Declare) -> None:
    """A staging for each."""
    for name in NAMES:
        staging(m, name)


def two_streams(h: Host) -> None:
    """The same program on every rank: calls of the one queued on one stream, calls of the other on another."""
    calls = []
    (nbytes,) = set(h.config.bytes)
    for stream, name in enumerate(NAMES):
        for _ in range(CALLS_OF_EACH):
            x, out = h.input(nbytes), h.output(nbytes)
            args = {"communicator": name, "lets_at_once": h.options["lets_at_once"]}
            h.launch(x, out, stream=stream, overlap=True, args=args)
            calls.append((x, out))
    for stream in range(len(NAMES)):
        h.sync(stream)
    for x, out in calls:
        h.expect(out, x)


def either_record(words: AbortWords) -> str | None:
    """The first loss of either."""
    return abort_record(words) or abort_record(words, NAMES[1])


@protocol(
    memory=both,
    blocks=2,
    threads=512,
    scenarios={"two_streams": two_streams},
    scenario="two_streams",
    options={"lets_at_once": False},
    abort_record=either_record,
    bytes=1024,
    world=2,
)
def two_communicators(b: Block) -> None:
    """The lab's one_shot, of the communicator that the launch belongs to."""
    one_shot.kernel(b)
