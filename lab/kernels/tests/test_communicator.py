"""Votes and the fallback, on a machine without a GPU: two processes, gloo."""

import gc
import os
import socket
import sys

import pytest

torch = pytest.importorskip("torch")

from lab.errors import LabError  # noqa: E402
from lab.kernels.communicator import AllReduce, is_flat, ranks_on_a_gpu  # noqa: E402


def _process(rank: int, job, port: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    job(rank, dist.group.WORLD)
    dist.barrier()  # neither rank tears its connections down while the other still uses them
    dist.destroy_process_group()
    gc.collect()
    # Gloo's threads may outlive the group; leaving without the interpreter's own teardown keeps them from aborting it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def spawn(job) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_process, args=(job, port), nprocs=2)


def _falls_back(rank, group):
    """One rank cannot even plan; both say so and still give the right sum."""
    import lab.kernels.communicator as module

    module._describe = lambda device: _only_on_rank_1_it_fails(rank)
    records = []
    module.log.warning = lambda text, *arguments: records.append(text % arguments if arguments else text)
    reducer = AllReduce(group, torch.device("cpu"), max_bytes=1 << 16)
    assert reducer.disabled.startswith("plan: rank 1: RuntimeError: no such GPU"), reducer.disabled
    assert "off on all 2 ranks" in records[0]

    tensor = torch.arange(6, dtype=torch.float32).view(2, 3) + rank
    want = 2 * torch.arange(6, dtype=torch.float32).view(2, 3) + 1
    assert torch.equal(reducer.all_reduce(tensor), want)
    turned = tensor.t()
    got = reducer.all_reduce(turned)
    assert torch.equal(got, want.t()) and got.stride() == turned.stride()
    out = torch.empty_like(tensor)
    assert reducer.all_reduce(tensor, out=out) is out and torch.equal(out, want)
    assert torch.equal(torch.ops.lab.all_reduce(tensor, reducer.id), want)
    assert len([line for line in records if "by torch.distributed" in line]) == 1, "once per reason, not per call"
    in_place = tensor.clone()
    torch.ops.lab.all_reduce_(in_place, reducer.id)
    assert torch.equal(in_place, want)
    try:
        reducer.all_reduce(tensor, out=torch.empty(6))
        raise AssertionError("a wrong out was taken")
    except LabError as error:
        assert "shape and strides" in str(error)
    assert reducer.check() == ()
    reducer.close()


def _only_on_rank_1_it_fails(rank: int):
    if rank == 1:
        raise RuntimeError("no such GPU")
    return "nvidia", "sm_90"


def _disagree(rank, group):
    import lab.kernels.communicator as module

    module._describe = lambda device: ("nvidia", "sm_90")
    reducer = AllReduce(group, torch.device("cpu"), max_bytes=(1 << 16) + rank)
    assert "disagree" in reducer.disabled
    reducer.close()


def _both(rank, group):
    _falls_back(rank, group)
    _disagree(rank, group)


def test_what_fails_on_one_rank_or_differs_disables_all_and_the_sum_is_still_right():
    spawn(_both)  # one pair of processes: each costs seconds to start


def test_ranks_that_share_a_gpu_are_counted():
    assert ranks_on_a_gpu([("a", "0"), ("a", "1"), ("a", "2")]) == 1
    assert ranks_on_a_gpu([("a", "0"), ("a", "1"), ("a", "0"), ("a", "0")]) == 3


def test_flat_tensors():
    cube = torch.zeros(3, 4, 5)
    for flat in (cube, cube.permute(2, 0, 1), cube[1], torch.zeros(()), torch.zeros(4, 1).expand(4, 1)):
        assert is_flat(flat)
    for ragged in (cube[:, ::2], cube[..., :3], torch.zeros(5, 1).expand(5, 3)):
        assert not is_flat(ragged)


def test_wrong_arguments_are_named():
    class Group:
        pass

    import lab.kernels.communicator as module

    original = module.dist
    try:
        module.dist = type("dist", (), {"get_rank": lambda group: 0, "get_world_size": lambda group: 2})
        with pytest.raises(LabError, match="did you mean two_shot"):
            AllReduce(Group(), torch.device("cpu"), algorithm="twoshot")
        with pytest.raises(LabError, match="did you mean RNE"):
            AllReduce(Group(), torch.device("cpu"), rounding="RNI")
        for wrong in ({"blocks": 0}, {"blocks": 513}, {"timeout": 0}, {"grace": -1}):
            with pytest.raises(LabError):
                AllReduce(Group(), torch.device("cpu"), **wrong)
    finally:
        module.dist = original
