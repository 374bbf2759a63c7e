"""On a GPU: all ranks in one process, then one process per rank. One GPU is enough; two are used when there."""

import contextlib
import socket
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from lab.kernels import self_test  # noqa: E402
from lab.kernels.rank import Rank, connect_in_process  # noqa: E402
from lab.kernels.staging import Layout  # noqa: E402
from lab.kernels.strategy import Plan, Room, fixed  # noqa: E402

pytestmark = pytest.mark.gpu


def make(world: int, **options) -> list[Rank]:
    from lab.kernels.device import describe

    vendor, architecture = describe(torch.device("cuda", 0))
    layout = Layout(world, 1 << 20, 1 << 20, 1 << 20)
    ranks = [Rank(vendor, architecture, 0, rank, layout, **options) for rank in range(world)]
    connect_in_process(ranks)
    return ranks


def plans(nbytes: int) -> list[Plan]:
    layout = Layout(4, 1 << 20, 1 << 20, 1 << 20)
    return [
        fixed(name, threads=128).plan(nbytes, layout, Room.of_shared_gpu(132, 8))
        for name in ("one_shot", "two_shot", "low_latency")
    ]


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_the_kernels_pass_the_self_test(world):
    ranks = make(world)
    outcome = self_test.run(ranks, plans, rounds=world + 1)
    assert not outcome.failures
    for rank in ranks:
        rank.close()


def test_the_seed_is_refused():
    ranks = make(4, kernels=["tests/seed_two_shot"])
    outcome = self_test.run(ranks, lambda nbytes: [Plan("seed_two_shot", 16, 256)], rounds=5, whole=True)
    assert outcome.failures
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "low_latency"])
def test_lost_late_and_reset(algorithm):
    ranks = make(2, timeout=0.05, grace=0.05)
    tensors = [torch.full((1000,), 1.0 + rank, device="cuda") for rank in range(2)]
    results = [torch.zeros(1000, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    plan = Plan(algorithm, 2, 128)
    torch.cuda._sleep(1)
    torch.cuda.synchronize()

    def launch(rank):
        ranks[rank].launch(
            plan, "fp32", tensors[rank].data_ptr(), results[rank].data_ptr(), 1000, streams[rank].cuda_stream
        )

    launch(0)
    torch.cuda.synchronize()
    (wait,) = ranks[0].waits()
    assert (wait.kind, wait.peer, wait.epoch, wait.blocks, wait.count) == ("lost", 1, 1, 2, 1000)
    launch(0)  # ends at once
    torch.cuda.synchronize()
    assert results[0].isnan().all()

    for rank in ranks:
        rank.reset(epoch=7)
    with torch.cuda.stream(streams[1]):
        torch.cuda._sleep(130_000_000)  # about 70 ms: after the bound, before the end of the grace
    launch(0)
    launch(1)
    torch.cuda.synchronize()
    assert [wait.kind for wait in ranks[0].waits()] == ["late"]
    assert all((result == 3).all() for result in results)
    for rank in ranks:
        rank.close()


def spawn(job, world: int = 2) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_process, args=(job, world, port), nprocs=world)


def _process(rank: int, job, world: int, port: int) -> None:
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    try:
        job(rank, device, dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def _values(rank: int, shape, dtype, device):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def _communicate(rank, device, group):
    from lab.kernels.communicator import AllReduce

    with AllReduce(group, device, max_bytes=1 << 20) as reducer:
        assert reducer.disabled is None, reducer.disabled
        assert reducer._rank.overlap == (torch.cuda.device_count() > 1)
        shape = (64, 48)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            both = [_values(r, shape, dtype, device) for r in range(2)]
            want = self_test.sum_in_rank_order(both)
            mine = both[rank]
            assert torch.equal(reducer.all_reduce(mine), want)
            turned = mine.t()
            got = reducer.all_reduce(turned)
            assert got.stride() == turned.stride() and torch.equal(got, want.t())
            middle = torch.empty(5000, dtype=dtype, device=device)[7 : 7 + mine.numel()].view(shape)
            middle.copy_(mine)
            assert torch.equal(reducer.all_reduce(middle, out=middle), want)
        # What the kernels do not take goes to the fallback, with the reason said.
        assert "gaps" in reducer.ineligible(mine[:, ::2])
        assert "bytes are more" in reducer.ineligible(torch.empty(1 << 20, device=device))
        large = torch.full((1 << 19,), 1.0, device=device)
        assert (reducer.all_reduce(large) == 2).all()

        both = [_values(r, shape, torch.bfloat16, device) for r in range(2)]
        static = both[rank].clone()
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = torch.ops.lab.all_reduce(static, reducer.name)
        for _ in range(50):
            captured.zero_()
            graph.replay()
        assert torch.equal(captured, self_test.sum_in_rank_order(both))

        compiled = torch.compile(
            lambda x: torch.ops.lab.all_reduce(x * 2, reducer.name) + 1, fullgraph=True, backend="aot_eager"
        )
        want = self_test.sum_in_rank_order([x * 2 for x in both]) + 1
        assert torch.equal(compiled(both[rank]), want)
        assert reducer.check() == ()


def test_one_process_per_rank():
    spawn(_communicate)


def _loses_a_peer(rank, device, group):
    import tempfile

    import torch.distributed as dist

    from lab.kernels.communicator import AllReduce, PeerLostError

    marker = Path(tempfile.mkdtemp()) / "wedged"
    reducer = AllReduce(group, device, max_bytes=1 << 16, blocks=32, timeout=0.5, grace=0.5, test=False, marker=marker)
    assert reducer.disabled is None, reducer.disabled
    x = torch.full((100,), 1.0 + rank, device=device)
    assert (reducer.all_reduce(x) == 3).all()
    if rank == 0:
        reducer.all_reduce(x)
        torch.cuda.synchronize()
        for use in (reducer.check, lambda: reducer.all_reduce(x)):
            with pytest.raises(PeerLostError, match="call 2, phase packet, rank 1"):
                use()
        assert "call 2, phase packet, rank 1" in marker.read_text()
    dist.barrier(group=group)
    reducer.reset()
    assert not marker.exists()
    assert (reducer.all_reduce(x) == 3).all()
    assert reducer.check() == ()
    reducer.close()


def test_a_lost_peer_is_raised_marked_and_reset():
    spawn(_loses_a_peer)


def _fails_on_one(rank, device, group):
    from lab.kernels.communicator import AllReduce

    not_a_folder = Path(__file__) if rank == 1 else None
    with pytest.warns(RuntimeWarning, match="off on all 2 ranks") if rank == 0 else contextlib.nullcontext():
        reducer = AllReduce(group, device, cache=not_a_folder)
    assert "rank 1" in reducer.disabled
    assert (reducer.all_reduce(torch.ones(8, device=device)) == 2).all()


def test_a_failure_on_one_rank_disables_all():
    spawn(_fails_on_one)


def _share_the_middle(rank, device, group):
    import torch.distributed as dist

    from lab.kernels.runtime import gpu

    runtime = gpu("amd" if torch.version.hip else "nvidia")
    whole = torch.arange(1 << 20, dtype=torch.int32, device=device)
    middle = whole[12345 : 12345 + 64]
    torch.cuda.synchronize()
    shared = [runtime.share(middle.data_ptr()) if rank == 0 else None]
    dist.broadcast_object_list(shared, group=group)
    if rank == 1:
        address, base = runtime.open_shared(*shared[0])
        data = bytearray(64 * 4)
        runtime.read(address, data)
        assert torch.frombuffer(data, dtype=torch.int32).tolist() == list(range(12345, 12345 + 64))
        runtime.close_shared(base)
    dist.barrier()


def test_a_tensor_in_the_middle_of_an_allocation_is_shared_right():
    spawn(_share_the_middle)


def _side_by_side(rank, device, group):
    """Two communicators, their streams in another order on each rank, and NCCL ahead on one and beside on the other."""
    import torch.distributed as dist

    from lab.kernels.communicator import AllReduce

    nccl = dist.new_group(backend="nccl") if torch.cuda.device_count() > 1 else None
    pair = [AllReduce(group, device, timeout=5, grace=15) for _ in range(2)]
    assert all(one.disabled is None for one in pair), [one.disabled for one in pair]
    streams = [torch.cuda.Stream() for _ in pair]
    for nbytes in (128 << 10, 2 << 20, 16 << 20):
        tensors = [torch.full((nbytes // 2,), 1.0 + k, device=device, dtype=torch.bfloat16) for k in range(2)]
        torch.cuda.synchronize()
        dist.barrier(group=group)
        for k in (0, 1) if rank == 0 else (1, 0):
            with torch.cuda.stream(streams[k]):
                if rank and k == 0:
                    torch.cuda._sleep(4_000_000)
                for _ in range(4):
                    out = pair[k].all_reduce(tensors[k])
                tensors[k] = out
        torch.cuda.synchronize()
        assert all((tensors[k] == 2.0 * (1 + k)).all() for k in range(2))
        if nccl is not None:
            theirs = torch.ones(1 << 22, device=device)
            with torch.cuda.stream(streams[0] if rank == 0 else streams[1]):
                dist.all_reduce(theirs, group=nccl)
            with torch.cuda.stream(streams[0]):
                for _ in range(4):
                    got = pair[0].all_reduce(torch.ones_like(tensors[0]))
            torch.cuda.synchronize()
            assert (theirs == 2).all() and (got == 2).all()
    for one in pair:
        assert one.check() == ()
        one.close()


def test_communicators_and_nccl_side_by_side():
    spawn(_side_by_side)


def _streams_and_captures(rank, device, group):
    """Eager on A, a forked capture between, eager on B; then replays."""
    from lab.kernels.communicator import AllReduce

    with AllReduce(group, device) as reducer:
        a, b, c, d = (torch.cuda.Stream() for _ in range(4))
        x, z = (torch.full((1 << 16,), value, device=device) for value in (1.0, 1000.0))
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            if rank == 0:
                torch.cuda._sleep(3_000_000)
            first = reducer.all_reduce(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(c):
            graph.capture_begin(capture_error_mode="thread_local")
            on_c = reducer.all_reduce(x)
            d.wait_stream(c)
            with torch.cuda.stream(d):
                on_d = reducer.all_reduce(z)
            back = reducer.all_reduce(x)
            c.wait_stream(d)
            graph.capture_end()
        with torch.cuda.stream(b):
            second = reducer.all_reduce(z)
        torch.cuda.synchronize()
        assert (first == 2).all() and (second == 2000).all()
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        assert (on_c == 2).all() and (on_d == 2000).all() and (back == 2).all()
        assert reducer.check() == ()


def test_eager_calls_and_forked_captures_follow_each_other():
    spawn(_streams_and_captures)


def _parts_and_pieces(rank, device, group):
    """reduce_scatter and all_gather along every dimension, messages in several launches, every rounding's self-test."""
    from lab.kernels.communicator import AllReduce

    with AllReduce(group, device, workspace=8 << 20) as reducer:
        assert reducer.disabled is None, reducer.disabled
        for dtype in (torch.float32, torch.bfloat16):
            both = [_values(r, (6, 1000, 4), dtype, device) for r in range(2)]
            total = self_test.sum_in_rank_order(both)
            for dim in range(3):
                assert torch.equal(reducer.reduce_scatter(both[rank], dim), total.chunk(2, dim)[rank])
                assert torch.equal(reducer.all_gather(both[rank], dim), torch.cat(both, dim))
            large = [_values(r, (9_000_001,), dtype, device) for r in range(2)]
            assert torch.equal(reducer.all_reduce(large[rank]), self_test.sum_in_rank_order(large))
            longer = [_values(r, (2, 3_000_001), dtype, device) for r in range(2)]
            part = self_test.sum_in_rank_order(longer)[rank : rank + 1]
            assert torch.equal(reducer.reduce_scatter(longer[rank]), part)
            assert torch.equal(reducer.all_gather(longer[rank]), torch.cat(longer))
        assert reducer.check() == ()
    for rounding in ("RTZ", "SR"):
        with AllReduce(group, device, rounding=rounding, max_bytes=4 << 20) as reducer:
            assert reducer.disabled is None, reducer.disabled
    with AllReduce(group, device, alone=torch.cuda.device_count() > 1) as reducer:
        assert reducer.disabled is None, reducer.disabled


def test_parts_pieces_and_roundings():
    spawn(_parts_and_pieces)
