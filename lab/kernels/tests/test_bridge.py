"""The bridge's HIP half, against a stand-in library: which functions it calls, and with what."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from lab.kernels.runtime import bridge


@pytest.fixture(scope="module")
def hip(tmp_path_factory):
    path = tmp_path_factory.mktemp("hip") / "libstandin.so"
    source = Path(__file__).with_name("stand_in_hip.c")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-w", str(source), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    library.stand_in_log.restype = ctypes.c_char_p
    gpu = bridge().Gpu("amd", ["libnot-there.so", str(path)], [])
    assert gpu.library == str(path)
    return gpu, lambda: library.stand_in_log().decode()


def test_staging_is_uncached_and_the_records_coherent(hip):
    gpu, log = hip
    gpu.free(gpu.malloc_uncached(4096))
    assert "ExtMallocWithFlags 4096 3" in log()  # hipDeviceMallocUncached
    host, device = gpu.malloc_host_mapped(192)
    assert host == device and "HostMalloc 192 0x40000003" in log()  # portable, mapped, coherent
    gpu.free_host(host)


def test_a_failure_names_the_call_and_gives_the_runtime_s_words(hip):
    gpu, _ = hip
    with pytest.raises(bridge().GpuError, match="hipExtMallocWithFlags failed with 2: out of memory"):
        gpu.malloc_uncached(1 << 31)


def test_a_handle_carries_the_offset(hip):
    gpu, log = hip
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
    gpu, _ = hip
    address = gpu.malloc(8)
    gpu.memset(address, 0x11, 8)
    gpu.write(address, b"abcd")
    data = bytearray(8)
    gpu.read(address, data)
    assert data == b"abcd\x11\x11\x11\x11"


def test_peer_access_that_is_on_already_is_fine_and_one_that_cannot_be_is_said(hip):
    gpu, log = hip
    assert gpu.enable_peer_access(0, 1) is True
    assert "SetDevice 0\nEnablePeerAccess 1 0" in log()
    assert gpu.enable_peer_access(0, 5) is False


def test_a_launch_goes_to_the_stream_with_its_argument(hip):
    gpu, log = hip
    kernel = gpu.kernel(gpu.load_module(b"code object"), "one_shot_bf16")
    assert gpu.blocks_per_multiprocessor(kernel, 512) == 4
    gpu.launch(kernel, 3, 256, b"hello", 0x1234, True)
    assert "Launch one_shot_bf16 3 1 1 256 1 1 0 0x1234 hello (nil)" in log()
    with pytest.raises(bridge().GpuError, match="hipModuleLoadData"):
        gpu.load_module(b"rubbish")


def test_a_runtime_that_is_not_here_is_named():
    with pytest.raises(bridge().GpuError, match=r"none of libnowhere\.so can be loaded"):
        bridge().Gpu("nvidia", ["libnowhere.so"], [])
