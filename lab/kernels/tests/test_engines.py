"""The engines' classes, called as vLLM's and SGLang's communicators call theirs."""

import contextlib
import logging

import pytest

torch = pytest.importorskip("torch")

from lab.kernels.communicator import PeerLostError  # noqa: E402
from lab.kernels.engines import sglang, vllm  # noqa: E402
from lab.kernels.tests.stand_in import install, lose, spawn  # noqa: E402

CPU = torch.device("cpu")


def as_vllm_calls(communicator, tensor, elsewhere):
    """`CudaCommunicator.all_reduce`."""
    if communicator is not None and not communicator.disabled and communicator.should_custom_ar(tensor):
        out = communicator.custom_all_reduce(tensor)
        assert out is not None
        return out
    return elsewhere(tensor)


def launches(library) -> int:
    count = library.stand_in_log().count(b"Launch")
    library.stand_in_clear()
    return count


def _used(kind, rank, group, library):
    engine = kind(group=group, device=CPU, max_size=1 << 20)
    assert not engine.disabled and engine.max_size == 1 << 20 and engine.world_size == 2
    launches(library)
    other = []
    x = torch.ones(64, 32, dtype=torch.bfloat16)
    out = as_vllm_calls(engine, x, other.append)
    assert out.shape == x.shape and out.data_ptr() != x.data_ptr() and launches(library) == 1
    assert engine.all_reduce(x, out=out, registered=True) is out and launches(library) == 1
    for declined in (torch.ones(1 << 20), torch.ones(4, dtype=torch.int32), x[:, ::2], torch.ones(0)):
        assert not engine.should_custom_ar(declined) and engine.custom_all_reduce(declined) is None
        as_vllm_calls(engine, declined, other.append)
    assert len(other) == 4 and launches(library) == 0
    capturing = [False]
    engine._capturing = lambda: capturing[0]
    with engine.capture():
        assert engine.custom_all_reduce(x).shape == x.shape and launches(library) == 0  # the warm-up
        capturing[0] = True
        engine.custom_all_reduce(x)
        assert launches(library) == 1
    capturing[0] = False
    engine.custom_all_reduce(x)
    assert launches(library) == 1
    engine.check()
    lose(engine.communicator)
    for use in (engine.check, engine.register_graph_buffers, lambda: engine.custom_all_reduce(x)):
        with pytest.raises(PeerLostError):
            use()
    with pytest.raises(PeerLostError), engine.capture():
        pass
    engine.close()
    assert engine.disabled and not engine.should_custom_ar(x)
    engine.close()
    dropped = kind(group=group, device=CPU)
    assert [library.stand_in_live(kind) for kind in range(4)] != [0, 0, 0, 0]
    del dropped
    assert [library.stand_in_live(kind) for kind in range(4)] == [0, 0, 0, 0]


def _alone(kind, group, rank):
    """A group of one says nothing and takes nothing."""
    import torch.distributed as dist

    own = [dist.new_group([0]), dist.new_group([1])][rank]
    said = []
    handler = logging.Handler()
    handler.emit = said.append
    logging.getLogger("lab").addHandler(handler)
    engine = kind(own, CPU)
    assert engine.disabled and engine.custom_all_reduce(torch.ones(4)) is None
    with engine.capture():
        engine.register_graph_buffers()
    engine.close()
    logging.getLogger("lab").removeHandler(handler)
    assert not said


def _all(rank, group, folder):
    library, _ = install(rank, folder)
    from lab.kernels import self_test

    self_test.run = lambda *_, **__: self_test.Outcome((), 0)  # the stand-in's kernels sum nothing
    for kind in (vllm.CustomAllreduce, sglang.CustomAllreduce):
        _used(kind, rank, group, library)
        _alone(kind, group, rank)
    engine = vllm.CustomAllreduce(group, CPU, symm_mem_enabled=True)
    engine.finalize_p2p()
    engine.close()
    engine = sglang.CustomAllreduce(group, CPU, max_pull_size=1 << 20, max_push_size=1 << 18, max_pull_blocks=9)
    assert engine.max_size == 1 << 20 and engine.communicator.room.blocks == 9
    assert engine.custom_all_reduce(torch.ones(4), override_algo=object()) is not None
    with contextlib.closing(engine):
        pass


def test_as_the_engines_use_them():
    spawn(_all)
