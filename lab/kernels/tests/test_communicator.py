"""Votes, fallbacks and refusals on a machine without a GPU: processes and gloo."""

import json
import logging
import os

import pytest

torch = pytest.importorskip("torch")

from lab.errors import LabError  # noqa: E402
from lab.kernels.communicator import AllReduce, ranks_on_a_gpu  # noqa: E402
from lab.kernels.tests.stand_in import install, spawn  # noqa: E402

CPU = torch.device("cpu")


def heard() -> list[str]:
    """What the communicator logs from now on."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    import lab.kernels.communicator as module

    module.log.addHandler(Keep())
    return lines


def _falls_back(rank, group, folder):
    """One rank cannot even plan; both say so and still give the right sum."""
    import lab.kernels.communicator as module

    _, here = install(rank, folder)
    module.Device = lambda device: _only_on_rank_1_it_fails(rank, here, device)
    lines = heard()
    reducer = AllReduce(group, CPU)
    assert reducer.disabled.startswith("plan: rank 1: RuntimeError: no such GPU"), reducer.disabled
    assert "off on all 2 ranks" in lines[0]

    tensor = torch.arange(6, dtype=torch.float32).view(2, 3) + rank
    want = 2 * torch.arange(6, dtype=torch.float32).view(2, 3) + 1
    assert torch.equal(reducer.all_reduce(tensor), want)
    turned = tensor.t()
    got = reducer.all_reduce(turned)
    assert torch.equal(got, want.t()) and got.stride() == turned.stride()
    out = torch.empty_like(tensor)
    assert reducer.all_reduce(tensor, out=out) is out and torch.equal(out, want)
    assert torch.equal(torch.ops.lab.all_reduce(tensor, reducer.name), want)
    torch.ops.lab.all_reduce_out(tensor, out.zero_(), reducer.name)
    assert torch.equal(out, want)
    in_place = tensor.clone()
    torch.ops.lab.all_reduce_(in_place, reducer.name)
    assert torch.equal(in_place, want)
    # What leaves gaps or overlaps has a sum all the same.
    wide = torch.arange(12, dtype=torch.float32).view(2, 6) + rank
    assert torch.equal(reducer.all_reduce(wide[:, ::2]), (2 * torch.arange(12.0).view(2, 6) + 1)[:, ::2])
    row = torch.full((1, 4), 1.0 + rank)
    assert torch.equal(reducer.all_reduce(row.expand(3, 4)), torch.full((3, 4), 3.0))
    other_sign = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert other_sign.is_neg() and torch.equal(reducer.all_reduce(other_sign), torch.full((3,), -2.0))
    assert len([line for line in lines if "by torch.distributed" in line]) == 1, "once per kind, not per call"
    _refuses(reducer, tensor)
    _parts(reducer, rank)
    assert reducer.check() == ()
    reducer.close()
    reducer.close()
    with pytest.raises(LabError, match="closed"):
        reducer.all_reduce(tensor)


def _refuses(reducer, tensor):
    long = torch.zeros(16)
    for wrong, said in (
        (torch.empty(6), "shape and strides"),
        (torch.empty_like(tensor, dtype=torch.float16), "shape and strides"),
        (tensor.t().contiguous().t(), "shape and strides"),
        (torch.empty_like(tensor, device="meta"), "device"),
        (torch.empty(1, 1).expand(2, 3), "share memory with each other"),
    ):
        with pytest.raises(LabError, match=said):
            reducer.all_reduce(tensor, out=wrong)
    for mine, out in ((long[:8], long[4:12]), (long[4:12], long[:8]), (long[:8], long[:16:2])):
        with pytest.raises(LabError, match=r"overlaps the tensor in part|shape and strides"):
            reducer.all_reduce(mine, out=out)
    with pytest.raises(LabError, match="share memory with each other"):
        spread = torch.ones(1, 3).expand(2, 3)
        reducer.all_reduce(spread, out=spread)
    wants = tensor.clone().requires_grad_()
    compiled = torch.compile(
        lambda x: torch.ops.lab.all_reduce(x, reducer.name), fullgraph=True, backend="aot_eager"
    )  # fmt: skip
    for path in (
        reducer.all_reduce,
        lambda x: torch.ops.lab.all_reduce(x, reducer.name),
        lambda x: torch.ops.lab.all_reduce_(x, reducer.name),
        reducer.reduce_scatter,
        lambda x: torch.ops.lab.all_gather(x, reducer.name),
        compiled,
    ):
        with pytest.raises(Exception, match="have no gradient, and this tensor requires one"):
            path(wants)
    with torch.no_grad():
        every = [path(wants) for path in (reducer.all_reduce, compiled)]
        every.append(torch.ops.lab.all_reduce(wants, reducer.name))
    assert all(torch.equal(got, every[0]) and not got.requires_grad for got in every)
    with torch.inference_mode():
        assert torch.equal(compiled(wants), every[0])


def _parts(reducer, rank):
    """reduce_scatter and all_gather by the fallback, along every dimension, eager and compiled."""
    base = torch.arange(48, dtype=torch.float32).view(4, 2, 6)
    total = 3 * base
    for dim in (0, 1, 2, -1):
        want = total.chunk(2, dim)[rank]
        got = reducer.reduce_scatter(base * (rank + 1), dim)
        assert got.is_contiguous() and torch.equal(got, want)
        every = torch.cat([base, base * 2], dim)
        gathered = reducer.all_gather(base * (rank + 1), dim)
        assert gathered.is_contiguous() and torch.equal(gathered, every)
        for op, made in (("reduce_scatter", got), ("all_gather", gathered)) if dim == 1 else ():
            ours = getattr(torch.ops.lab, op)
            compiled = torch.compile(
                lambda x, f=ours, d=dim: f(x, reducer.name, d), fullgraph=True, backend="aot_eager"
            )
            assert torch.equal(compiled(base * (rank + 1)), made)
    with pytest.raises(LabError, match="cannot be divided among 2"):
        reducer.reduce_scatter(torch.ones(3, 2))
    with pytest.raises(LabError, match="no such dimension"):
        reducer.all_gather(torch.ones(3, 2), 2)


def _only_on_rank_1_it_fails(rank: int, here, device):
    if rank == 1:
        raise RuntimeError("no such GPU")
    return here(device)


def _disagree(rank, group, folder):
    install(rank, folder)
    reducer = AllReduce(group, CPU, max_bytes=(1 << 16) + 4096 * rank)
    assert "disagree" in reducer.disabled
    reducer.close()


def _names(rank, group, folder):
    """The same on every rank, never given twice, and the key that a compiled graph is cached by."""
    import torch.distributed as dist

    install(rank, folder)
    if rank == 0:  # a name that only one rank has given already
        from lab.kernels.registry import registry

        registry.enter("engine", registry.next_number("engine"), group)
    first = AllReduce(group, CPU, test=False, name="engine")
    every = [None, None]
    dist.all_gather_object(every, first.name, group=group)
    assert every == ["engine.2", "engine.2"]
    first.close()
    with AllReduce(group, CPU, test=False, name="engine") as second:
        assert second.name == "engine.3"
        del first
        with pytest.raises(LabError, match="no communicator of this name"):
            torch.ops.lab.all_reduce(torch.ones(4), "engine.2")


def _all(rank, group, folder):
    _falls_back(rank, group, folder)
    _disagree(rank, group, folder)
    _names(rank, group, folder)


def test_what_fails_on_one_rank_or_differs_disables_all_and_the_sum_is_still_right():
    spawn(_all)  # one pair of processes: each costs seconds to start


def _sub_groups(rank, group, folder):
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([1, 2])]
    mine = groups[rank // 2]
    with AllReduce(mine, CPU) as reducer:  # no GPU here: disabled, by vote, in both halves
        assert reducer.disabled
        assert reducer.all_reduce(torch.tensor([float(rank)])).item() == [1, 1, 5, 5][rank]
        assert reducer.reduce_scatter(torch.tensor([1.0, 2.0]) * (rank + 1)).tolist() == [[3], [6], [7], [14]][rank]
        assert reducer.all_gather(torch.tensor([rank])).tolist() == [[0, 1], [2, 3]][rank // 2]
    with AllReduce(mine, CPU, fallback=mine) as reducer:
        assert reducer.all_reduce(torch.tensor([float(rank)])).item() == [1, 1, 5, 5][rank]
    with pytest.raises(LabError, match=r"other ranks than the communicator"):
        AllReduce(mine, CPU, fallback=group)
    with AllReduce(group, CPU) as reducer:
        assert reducer._fallback.group is group
        assert reducer.all_reduce(torch.tensor([float(rank)])).item() == 6


def test_a_sub_group_falls_back_over_its_own_ranks():
    spawn(_sub_groups, world=4)


def test_ranks_that_share_a_gpu_are_counted():
    assert ranks_on_a_gpu([("a", "0"), ("a", "1"), ("a", "2")]) == 1
    assert ranks_on_a_gpu([("a", "0"), ("a", "1"), ("a", "0"), ("a", "0")]) == 3


def test_wrong_arguments_are_named():
    group = object()
    with pytest.raises(LabError, match="did you mean two_shot"):
        AllReduce(group, CPU, algorithm="twoshot")
    with pytest.raises(LabError, match="did you mean RNE"):
        AllReduce(group, CPU, rounding="RNI")
    for wrong in ({"blocks": 0}, {"blocks": 513}, {"timeout": 0}, {"grace": -1}, {"share": 0}, {"share": 1.1},
                  {"spare": -1}):  # fmt: skip
        with pytest.raises(LabError):
            AllReduce(group, CPU, **wrong)


def test_the_handle_of_the_op_is_the_same_in_every_run():
    """Two runs of one program: same name, so the same key of compiled graphs."""
    runs = []
    for _ in range(2):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        pid = os.fork()
        if pid == 0:
            from lab.kernels.registry import Registry

            names = Registry()
            made = [names.enter("lab:0", names.next_number("lab:0"), names) for _ in range(2)]
            os.write(write, json.dumps(made).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        runs.append(os.read(read, 1000))
    assert runs[0] == runs[1] == b'["lab:0.1", "lab:0.2"]'
