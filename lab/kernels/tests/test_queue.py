"""What is queued for a call, on which streams, and in which order: the real launch path on a stand-in runtime."""

import itertools
import re

import pytest

torch = pytest.importorskip("torch")

import lab.kernels.communicator as module  # noqa: E402
from lab.kernels.communicator import AllReduce, PeerLostError  # noqa: E402
from lab.kernels.strategy import default  # noqa: E402
from lab.kernels.streams import CAPTURES, Order  # noqa: E402
from lab.kernels.tests.stand_in import install, lose, spawn  # noqa: E402
from lab.kernels.tests.test_communicator import heard  # noqa: E402

CPU = torch.device("cpu")


class Streams:
    """Streams by number; captures by stream; what waits for what."""

    def __init__(self):
        self.capture: dict[int, int] = {}
        self.waits: list[tuple[int, int]] = []
        self.order = Order(lambda stream: self.capture.get(stream, 0), lambda a, b: self.waits.append((a, b)))

    def calls(self, *streams):
        for stream in streams:
            self.order.queue_on(stream)
        return self.waits


def test_an_eager_call_waits_for_the_last_eager_one_whatever_was_captured_between():
    streams = Streams()
    streams.capture[3] = 77
    assert streams.calls(1, 3, 3, 2) == [(1, 2)]
    assert streams.calls(3, 2, 1) == [(1, 2), (2, 1)]


def test_branches_of_one_capture_are_put_in_a_row_and_captures_are_apart():
    streams = Streams()
    streams.capture |= {5: 1, 6: 1, 7: 2, 8: 2}
    assert streams.calls(5, 7, 6, 8, 5) == [(5, 6), (7, 8), (6, 5)]
    streams.capture = {9: 3}
    assert streams.calls(9) == [(5, 6), (7, 8), (6, 5)]


def test_captures_are_not_kept_for_ever():
    streams = Streams()
    for number in range(1, 1000):
        streams.capture = {5: number}
        streams.calls(5)
    assert len(streams.order._captured) <= CAPTURES and not streams.waits


def test_every_order_of_eager_calls_is_one_row():
    for row in itertools.product((1, 2, 3), repeat=5):
        waits = Streams().calls(*row)
        assert waits == [(a, b) for a, b in itertools.pairwise(row) if a != b]


def logged(library) -> list[str]:
    text = library.stand_in_log().decode(errors="replace")
    library.stand_in_clear()
    return re.findall(r"^(?:Launch \w+ \d+|Record \S+|Wait \S+)", text, re.M)


def _row(reducer, library, here):
    x = torch.ones(2048, dtype=torch.bfloat16)
    logged(library)
    here.current = 0x10
    reducer.all_reduce(x)
    here.current = 0x30
    library.stand_in_capture(1, 9)
    reducer.all_reduce(x)
    here.current = 0x40
    torch.ops.lab.all_reduce(x, reducer.name)  # a branch of the same capture
    library.stand_in_capture(0, 0)
    here.current = 0x20
    reducer.all_reduce(x)
    call = "Launch low_latency_bf16 2"
    assert logged(library) == [call, call, "Record 0x30", "Wait 0x40", call, "Record 0x10", "Wait 0x20", call]
    here.current = 0


def _pieces(reducer, library):
    """A large message goes in several launches that cover it without a gap."""
    for count, dtype in ((8 << 20, torch.bfloat16), ((4 << 20) + 3, torch.float32), (5, torch.float16)):
        x = torch.empty(count, dtype=dtype)
        launches = reducer._launches(x)
        ends = [at + what.count * x.element_size() for at, what in launches]
        assert [at for at, _ in launches] == [0, *ends[:-1]] and ends[-1] == x.nbytes
        logged(library)
        reducer.all_reduce(x)
        queued = [line for line in logged(library) if line.startswith("Launch")]
        assert len(queued) == len(launches) == (3 if x.nbytes >= 16 << 20 else 1)
    assert "more than the" in reducer.ineligible(torch.empty(33 << 20, dtype=torch.bfloat16))
    logged(library)
    assert reducer.reduce_scatter(torch.ones(1 << 20, 2)).shape == (1 << 19, 2)
    cuts = logged(library)
    assert len(cuts) == 4 and all(line.startswith("Launch reduce_scatter_fp32") for line in cuts)
    assert reducer.all_gather(torch.ones(3, 5, dtype=torch.float16), dim=1).shape == (3, 10)
    assert logged(library) == ["Launch all_gather_fp16 1"]


def _once(reducer):
    """A plan is made once for a type and size; what cannot go is said once for a kind."""
    made = []
    plan = type(reducer.strategy).plan
    module.Strategy.plan = lambda self, *arguments: made.append(arguments) or plan(self, *arguments)
    x = torch.ones(1234, dtype=torch.bfloat16)
    for _ in range(50):
        reducer.all_reduce(x, out=torch.empty_like(x))
    assert len(made) == 1
    module.Strategy.plan = plan
    lines = heard()
    for count in range(20):
        reducer.all_reduce(torch.ones(count, dtype=torch.float64))
        reducer.all_reduce(torch.ones(0))
    assert len(lines) == 2  # a type, and no elements
    for count in range(1, module.PREPARED + 10):
        reducer._launches(torch.empty(count, dtype=torch.float16))
    assert len(reducer._prepared) <= module.PREPARED


def _room(group, rank):
    """Several at a time: each within its claim; what is given back can be claimed again."""
    made = [AllReduce(group, CPU, test=False) for _ in range(3)]
    assert [one.room.blocks for one in made] == [44, 14, 5]
    assert all(not one._rank.early_blocks for one in made)
    with pytest.warns(RuntimeWarning, match="alone") if rank == 0 else pytest.MonkeyPatch.context():
        refused = AllReduce(group, CPU, test=False, alone=True)
    assert "alone on its GPU" in refused.disabled
    too_much = AllReduce(group, CPU, test=False, blocks=10)
    assert "have 63 of the 66 blocks" in too_much.disabled
    for one in (*made, refused, too_much):
        one.close()
    with AllReduce(group, CPU, test=False, alone=True) as whole:
        assert whole.disabled is None and whole._rank.early_blocks and whole.room.threads == 132 * 4 * 512
        second = AllReduce(group, CPU, test=False)
        assert "alone on its GPU" in second.disabled
        second.close()
    # A rank whose GPU has less left decides for all.
    from lab.kernels.registry import Claim, registry

    if rank == 1:
        registry.claim("other", Claim("gpu 1", 60, False))
    with AllReduce(group, CPU, test=False) as small:
        assert small.room.blocks == 4
    registry.give_back("other")


def _lost_in_a_graph(reducer):
    """A replay that lost a peer tells nobody; check() does, and so does the next eager call."""
    lose(reducer)
    for use in (reducer.check, lambda: reducer.all_reduce(torch.ones(4)), lambda: reducer.all_gather(torch.ones(4))):
        with pytest.raises(PeerLostError, match="rank 1"):
            use()
    reducer.reset()
    reducer.all_reduce(torch.ones(4))


def _all(rank, group, folder):
    library, here = install(rank, folder)
    with AllReduce(group, CPU, test=False, timeout=3, grace=5, algorithm=default("sm_90", 2)) as reducer:
        assert reducer.disabled is None, reducer.disabled
        assert (reducer._rank._call.timeout, reducer._rank._call.grace) == (300_000_000, 500_000_000)
        _row(reducer, library, here)
        _pieces(reducer, library)
        _once(reducer)
        _lost_in_a_graph(reducer)
    _room(group, rank)


def test_what_is_queued():
    spawn(_all)


def _topology(rank, group, folder):
    library, _ = install(rank, folder)
    library.stand_in_link(2)  # PCIe
    reducer = AllReduce(group, CPU, test=False)
    assert reducer.disabled.startswith("links: pcie joins ranks 0 and 1"), reducer.disabled
    reducer.close()
    library.stand_in_link(4)
    with AllReduce(group, CPU, test=False) as reducer:
        assert reducer.disabled is None


def test_a_box_of_three_on_pcie_is_left_to_others():
    spawn(_topology, world=3)
