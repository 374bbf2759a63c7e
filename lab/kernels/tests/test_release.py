"""Nothing is left behind and nobody hangs, whatever ends: processes, gloo, and a runtime that counts what it lent."""

import os
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import lab.kernels.communicator as module  # noqa: E402
from lab.kernels.communicator import AllReduce, PeerLostError  # noqa: E402
from lab.kernels.registry import registry  # noqa: E402
from lab.kernels.tests.stand_in import install, lose, spawn  # noqa: E402
from lab.kernels.tests.test_communicator import heard  # noqa: E402
from lab.kernels.votes import PeerGoneError  # noqa: E402

CPU = torch.device("cpu")
FAILING = (
    *("ModuleGetFunction", "EventCreateWithFlags", "StreamCreateWithFlags", "ExtMallocWithFlags", "Malloc"),
    *("HostMalloc", "HostGetDevicePointer", "Memset", "IpcGetMemHandle", "IpcOpenMemHandle", "DeviceSynchronize"),
)


def lent(library) -> list[int]:
    return [library.stand_in_live(kind) for kind in range(4)]


def made(group, **options) -> AllReduce:
    reducer = AllReduce(group, CPU, test=False, **options)
    assert reducer.disabled is None, reducer.disabled
    return reducer


def _set_up_fails(rank, group, library):
    for name in FAILING:
        library.stand_in_fail(name.encode() if rank == 1 else b"", 0)
        reducer = AllReduce(group, CPU, test=False)
        library.stand_in_fail(b"", 0)
        assert "rank 1: GpuError" in reducer.disabled and name in reducer.disabled, reducer.disabled
        assert lent(library) == [0, 0, 0, 0], name
        assert not registry.claimed(f"gpu {rank}")
        reducer.close()


def _device_stays(rank, group, library, here):
    """Every method leaves the caller's current device as it was."""
    library.hipSetDevice(5)
    with made(group) as reducer:
        reducer.all_reduce(torch.ones(8))
        reducer._rank.epoch()
        reducer.reset()
    assert here.rank != 5 and reducer_device(library) == 5


def reducer_device(library) -> int:
    import ctypes

    device = ctypes.c_int(-1)
    library.hipGetDevice(ctypes.byref(device))
    return device.value


def _unmap_before_free(rank, group, library):
    """A rank that is slow to unmap: its peer's memory lives until it has."""
    reducer = made(group)
    unmap, close = reducer._rank.unmap, reducer._rank.close
    at = {}

    def slow_unmap():
        time.sleep(0.5 * rank)
        unmap()
        at["unmapped"] = time.monotonic()

    def noted_close():
        at["freed"] = time.monotonic()
        close()

    reducer._rank.unmap, reducer._rank.close = slow_unmap, noted_close
    reducer.close()
    every = [None, None]
    dist.all_gather_object(every, at, group=group)
    assert min(one["freed"] for one in every) >= max(one["unmapped"] for one in every)
    assert lent(library) == [0, 0, 0, 0]


def _loss_is_told(rank, group, library, folder):
    """`with` and close() tell of a lost peer, once, and give everything back all the same."""
    marker = folder / f"wedged{rank}"
    with pytest.raises(PeerLostError, match="rank 1"), made(group, marker=marker) as reducer:
        lose(reducer)
        reducer.all_reduce(torch.ones(8))
    assert "rank 1" in marker.read_text() and lent(library) == [0, 0, 0, 0]
    for use in (lambda r: r.check(), lambda r: r.all_reduce(torch.ones(8))):
        reducer = made(group)
        lose(reducer)
        with pytest.raises(PeerLostError):
            use(reducer)
        reducer.close()  # has been told
        assert lent(library) == [0, 0, 0, 0]
    reducer = made(group)
    lose(reducer)
    with pytest.raises(PeerLostError):
        reducer.close()  # nobody had looked
    assert lent(library) == [0, 0, 0, 0]
    reducer.close()
    reducer = made(group, marker=marker)
    lose(reducer)
    with pytest.raises(PeerLostError):
        reducer.check()
    reducer.reset()
    assert reducer.check() == () and not marker.exists()
    reducer.close()


def _first_error_stays(rank, group, library):
    """What fails while an error passes through is a note on that error."""
    with pytest.raises(ValueError, match="the caller's") as caught, made(group):
        library.stand_in_fail(b"IpcCloseMemHandle", 0)
        raise ValueError("the caller's")
    library.stand_in_fail(b"", 0)
    assert any("IpcCloseMemHandle failed" in note for note in caught.value.__notes__)
    assert lent(library) == [0, 0, 0, 0]


def _error_on_one_rank(rank, group, library):
    """The rank that raises does not sit in a barrier until its peer comes; what the peer may use is kept till then."""
    module.CLOSE_PATIENCE = 0.5
    lines = heard()
    reducer = made(group)
    start = time.monotonic()
    if rank == 1:
        with pytest.raises(ValueError, match="the caller's"), reducer:
            raise ValueError("the caller's")
        assert time.monotonic() - start < 3
        assert "are kept: rank 0 has not closed" in lines[-1] and lent(library)[0] > 0
        assert registry.claimed("gpu 1")
    else:
        time.sleep(2)
        reducer.close()
        assert lent(library) == [0, 0, 0, 0]
    dist.barrier(group)
    reducer.close()  # by now the peer has come
    assert lent(library) == [0, 0, 0, 0] and not registry.claimed(f"gpu {rank}")


def _stuck_call(rank, group, library):
    """A call that waits for a peer for ever is given up; other threads run meanwhile."""
    module.CLOSE_PATIENCE = 0.5
    reducer = made(group)
    library.stand_in_run(1)
    start = time.monotonic()
    reducer.close()
    assert 0.4 < time.monotonic() - start < 3 and lent(library) == [0, 0, 0, 0]
    assert "MemcpyAsync 8 1" in library.stand_in_log().decode(errors="replace")


def _all(rank, group, folder):
    library, here = install(rank, folder)
    _set_up_fails(rank, group, library)
    _device_stays(rank, group, library, here)
    _unmap_before_free(rank, group, library)
    _loss_is_told(rank, group, library, folder)
    _first_error_stays(rank, group, library)
    _error_on_one_rank(rank, group, library)
    _stuck_call(rank, group, library)


def test_everything_is_given_back_and_the_first_error_is_told():
    spawn(_all)


def _peer_dies(rank, group, folder, dying):
    library, _ = install(rank, folder)
    reducer = made(group, fallback=group)
    ready = folder / "ready"
    if rank == dying:
        while not ready.exists():
            time.sleep(0.01)
        os._exit(0)
    ready.touch()
    library.stand_in_run(1)  # a call that waits for the peer
    start = time.monotonic()
    lose(reducer, dying)
    library.stand_in_run(1)
    with pytest.raises(PeerLostError), reducer:
        reducer.check()
    assert time.monotonic() - start < 10, "nobody waits for the dead"
    assert lent(library) == [0, 0, 0, 0]
    module.SET_UP_PATIENCE = 1  # a new communicator has not met anybody yet
    with pytest.raises(PeerGoneError, match=r"does not come|store is gone"):
        AllReduce(group, CPU, test=False)
    assert lent(library) == [0, 0, 0, 0]
    os._exit(0)


def _rank_1_dies(rank, group, folder):
    _peer_dies(rank, group, folder, 1)


def _rank_0_dies(rank, group, folder):
    """Rank 0 holds the store."""
    _peer_dies(rank, group, folder, 0)


@pytest.mark.parametrize("job", [_rank_1_dies, _rank_0_dies])
def test_after_a_peer_has_died_everything_is_given_back_at_once(job):
    spawn(job)


def _collected(rank, group, folder):
    """Without close(): the process says so, and keeps the memory, since a graph may still use it."""
    import gc
    import warnings

    library, _ = install(rank, folder)
    reducer = made(group)
    name = reducer.name
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del reducer
        gc.collect()
    assert any("was not closed" in str(one.message) and name in str(one.message) for one in told)
    assert lent(library)[0] == 2 and registry.claimed(f"gpu {rank}")


def test_a_communicator_that_is_dropped_is_told_of():
    spawn(_collected)
