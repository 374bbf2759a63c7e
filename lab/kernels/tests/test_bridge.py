"""The bridge's HIP half, against a stand-in library: which functions it calls, and with what."""

import threading
import time

import pytest

from lab.kernels.runtime import bridge
from lab.kernels.tests.stand_in import library


@pytest.fixture(scope="module")
def hip(tmp_path_factory):
    loaded, gpu = library(tmp_path_factory.mktemp("hip"))
    assert gpu.library.endswith("libstandin.so")
    return gpu, lambda: loaded.stand_in_log().decode(errors="replace"), loaded


def test_staging_is_uncached_and_the_records_coherent(hip):
    gpu, log, _ = hip
    gpu.free(gpu.malloc_uncached(4096))
    assert "ExtMallocWithFlags 4096 3" in log()  # hipDeviceMallocUncached
    host, device = gpu.malloc_host_mapped(192)
    assert host == device and "HostMalloc 192 0x40000003" in log()  # portable, mapped, coherent
    gpu.free_host(host)


def test_a_failure_names_the_call_and_gives_the_runtime_s_words(hip):
    gpu, _, _ = hip
    with pytest.raises(bridge().GpuError, match="hipExtMallocWithFlags failed with 2: out of memory"):
        gpu.malloc_uncached(1 << 31)


def test_a_handle_carries_the_offset(hip):
    gpu, log, _ = hip
    address = gpu.malloc_uncached(1000)
    handle, offset = gpu.share(address + 300)
    assert len(handle) == 64 and offset == 300
    opened, base = gpu.open_shared(handle, offset)
    assert (opened, base) == (address + 300, address)
    gpu.close_shared(base)
    assert "IpcCloseMemHandle 1" in log()
    with pytest.raises(ValueError, match="64 bytes"):
        gpu.open_shared(b"short", 0)


def test_memory_moves_both_ways(hip):
    gpu, _, _ = hip
    address = gpu.malloc(8)
    gpu.memset(address, 0x11, 8)
    gpu.write(address, b"abcd")
    data = bytearray(8)
    gpu.read(address, data)
    assert data == b"abcd\x11\x11\x11\x11"


def test_peer_access_that_is_on_already_is_fine_and_one_that_cannot_be_is_said(hip):
    gpu, log, _ = hip
    assert gpu.enable_peer_access(0, 1) is True
    assert "SetDevice 0\nEnablePeerAccess 1 0" in log()
    assert gpu.enable_peer_access(0, 9) is False


def test_a_launch_goes_to_the_stream_with_its_argument(hip):
    gpu, log, loaded = hip
    kernel = gpu.kernel(gpu.load_module(b"code object"), "one_shot_bf16")
    assert gpu.blocks_per_multiprocessor(kernel, 512) == 4
    places = {name: 8 * at for at, name in enumerate(("input", "output", "count", "trace"), 1)}
    places |= {"blocks": 40, "threads": 44, "flag": 48}
    launcher = bridge().Launcher(gpu, 0, b"hello" + bytes(51), places)
    launcher.launch(kernel, 3, 256, 1, 2, 3, 0x1234, True, 1, 4)
    assert "Launch one_shot_bf16 3 1 1 256 1 1 0 0x1234 hello (nil)" in log()
    loaded.stand_in_fail(b"Launch", 0)
    with pytest.raises(bridge().GpuError, match="hipLaunchKernel failed with 2: out of memory"):
        launcher.launch(kernel, 3, 256, 1, 2, 3, 0x1234, True, 1, 4)
    loaded.stand_in_fail(b"", 0)
    with pytest.raises(ValueError, match="1024 is the most"):
        bridge().Launcher(gpu, 0, bytes(1025), places)
    with pytest.raises(bridge().GpuError, match="hipModuleLoadData"):
        gpu.load_module(b"rubbish")


def test_a_runtime_that_is_not_here_is_named():
    with pytest.raises(bridge().GpuError, match=r"none of libnowhere\.so can be loaded"):
        bridge().Gpu("nvidia", ["libnowhere.so"], [])


def test_the_caller_s_device_stays_current(hip):
    gpu, _, _ = hip
    gpu.set_device(6)
    with gpu.on(2):
        assert gpu.current_device() == 2
    assert gpu.current_device() == 6
    with pytest.raises(KeyError), gpu.on(2):
        raise KeyError
    assert gpu.current_device() == 6


def test_streams_are_ordered_by_an_event_and_captures_have_numbers(hip):
    gpu, log, loaded = hip
    event = gpu.new_event()
    gpu.order(event, 0x10, 0x20)
    assert log().endswith("Record 0x10\nWait 0x20\n")
    gpu.free_event(event)
    assert gpu.capture_of(0x10) == 0
    loaded.stand_in_capture(1, 0)
    assert gpu.capture_of(0x10) == 1
    loaded.stand_in_capture(1, 41)
    assert gpu.capture_of(0x10) == 42
    loaded.stand_in_capture(0, 41)
    assert gpu.capture_of(0x10) == 0


def test_what_joins_two_gpus(hip):
    gpu, _, loaded = hip
    assert gpu.bus_id(3) == "0000:13:00.0"
    assert gpu.link(3, gpu.bus_id(3)) == "same"
    assert gpu.link(3, gpu.bus_id(4)) == "xgmi"
    loaded.stand_in_link(2)
    assert gpu.link(3, gpu.bus_id(4)) == "pcie"
    loaded.stand_in_link(4)
    assert gpu.link(3, gpu.bus_id(12)) == "none"
    assert gpu.link(3, "0000:f3:00.0") == "hidden"


def test_other_threads_run_while_the_runtime_works(hip):
    gpu, _, loaded = hip
    loaded.stand_in_run(1)
    waiting = threading.Thread(target=gpu.synchronize)
    waiting.start()
    time.sleep(0.05)  # this thread runs, though the other one is in the runtime
    assert waiting.is_alive()
    address = gpu.malloc(8)
    stream = gpu.new_stream()
    gpu.write_beside(stream, address, b"12345678")  # the stand-in's kernels end at this
    waiting.join(5)
    assert not waiting.is_alive()
    gpu.free_stream(stream)
    gpu.free(address)
