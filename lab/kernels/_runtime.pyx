# cython: language_level=3
"""Bridge to libcudart or libamdhip64, and to kernels compiled for the CPU host. Built on first use by runtime.py.

Addresses and streams are plain integers. Nothing here links against a GPU runtime: it is loaded by name.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy


cdef extern from "dlfcn.h":
    void* dlopen(const char* name, int flags)
    void* dlsym(void* handle, const char* name)
    char* dlerror()
    int RTLD_NOW
    int RTLD_LOCAL
    int RTLD_NOLOAD


cdef extern from *:
    """
    typedef struct { char bytes[64]; } LabIpcHandle;   /* cudaIpcMemHandle_t, hipIpcMemHandle_t: by value */
    typedef struct { unsigned x, y, z; } LabDim3;
    typedef struct { int id; char pad[4]; union { char bytes[64]; int number; } value; } LabLaunchAttribute;
    typedef struct {                                   /* cudaLaunchConfig_t */
        LabDim3 grid, block;
        size_t shared;
        void* stream;
        LabLaunchAttribute* attributes;
        unsigned count;
    } LabLaunchConfig;
    """
    ctypedef struct LabDim3:
        unsigned x
        unsigned y
        unsigned z
    ctypedef union LabAttributeValue:
        int number
    ctypedef struct LabLaunchAttribute:
        int id
        LabAttributeValue value
    ctypedef struct LabLaunchConfig:
        LabDim3 grid
        LabDim3 block
        size_t shared
        void* stream
        LabLaunchAttribute* attributes
        unsigned count
    ctypedef struct LabIpcHandle:
        char bytes[64]


class GpuError(Exception):
    """A runtime call failed: which one, its code, and the runtime's words."""


cdef void* _open(name, bint loaded_only=False) except? NULL:
    cdef bytes encoded = name.encode()
    cdef int flags = RTLD_NOW | RTLD_LOCAL
    if loaded_only:
        flags |= RTLD_NOLOAD
    return dlopen(encoded, flags)


cdef void* _symbol(void* handle, name) except NULL:
    cdef bytes encoded = name.encode()
    cdef void* found = dlsym(handle, encoded)
    if found == NULL:
        raise GpuError(f"the library has no symbol {name}")
    return found


ctypedef int (*host_run_t)(const void*, uint64_t, const void*, uint64_t*) noexcept nogil
ctypedef void (*host_sizes_t)(uint64_t*) noexcept nogil


cdef class HostModule:
    """Kernels compiled for the CPU host. One run at a time: the scheduler is the module's."""

    cdef void* handle

    def __init__(self, path):
        self.handle = _open(str(path))
        if self.handle == NULL:
            raise OSError(dlerror().decode())

    def kernel(self, name):
        """Address of a kernel such as one_shot_bf16."""
        return <uintptr_t>_symbol(self.handle, name)

    def sizes(self):
        """Bytes of Call, Launch, Control, WaitRecord and Options as the C++ side has them."""
        cdef uint64_t sizes[5]
        (<host_sizes_t>_symbol(self.handle, "lab_host_sizes"))(sizes)
        return [sizes[i] for i in range(5)]

    def run(self, const unsigned char[::1] launches, uint64_t count, const unsigned char[::1] options):
        """Play launches to their end; (outcome, steps)."""
        cdef host_run_t play = <host_run_t>_symbol(self.handle, "lab_host_run")
        cdef uint64_t steps = 0
        cdef int outcome
        with nogil:
            outcome = play(&launches[0], count, &options[0], &steps)
        return outcome, steps


ctypedef int (*int_t)(int) noexcept nogil
ctypedef int (*none_t)() noexcept nogil
ctypedef int (*pointer_t)(void*) noexcept nogil
ctypedef int (*malloc_t)(void**, size_t) noexcept nogil
ctypedef int (*malloc_flags_t)(void**, size_t, unsigned) noexcept nogil
ctypedef int (*memset_t)(void*, int, size_t) noexcept nogil
ctypedef int (*memcpy_t)(void*, const void*, size_t, int) noexcept nogil
ctypedef int (*device_pointer_t)(void**, void*, unsigned) noexcept nogil
ctypedef int (*get_handle_t)(LabIpcHandle*, void*) noexcept nogil
ctypedef int (*open_handle_t)(void**, LabIpcHandle, unsigned) noexcept nogil
ctypedef int (*can_access_t)(int*, int, int) noexcept nogil
ctypedef int (*enable_peer_t)(int, unsigned) noexcept nogil
ctypedef int (*range_t)(uint64_t*, size_t*, uint64_t) noexcept nogil
ctypedef const char* (*error_string_t)(int) noexcept nogil
ctypedef int (*library_load_t)(void**, const void*, void*, void*, unsigned, void*, void*, unsigned) noexcept nogil
ctypedef int (*library_kernel_t)(void**, void*, const char*) noexcept nogil
ctypedef int (*attributes_t)(void*, const void*) noexcept nogil
ctypedef int (*cuda_launch_t)(const LabLaunchConfig*, const void*, void**) noexcept nogil
ctypedef int (*occupancy_t)(int*, const void*, int, size_t) noexcept nogil
ctypedef int (*module_load_t)(void**, const void*) noexcept nogil
ctypedef int (*hip_launch_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                             void**, void**) noexcept nogil

DEF IPC_LAZY_PEER_ACCESS = 1
DEF HOST_MAPPED = 2
DEF HOST_PORTABLE = 1
DEF HIP_HOST_COHERENT = 0x40000000  # seen by the host while the kernel runs
DEF HIP_UNCACHED = 3
DEF PROGRAMMATIC_STREAM_SERIALIZATION = 6  # cudaLaunchAttributeID


cdef class Gpu:
    """One GPU runtime. `vendor` is "nvidia" or "amd"; `library` is the name under which it was loaded.

    Methods raise GpuError with the runtime's own words. Device-dependent calls act on the current device:
    set_device first, in the calling thread.
    """

    cdef void* handle
    cdef void* driver
    cdef cuda_launch_t cuda_launch
    cdef hip_launch_t hip_launch
    cdef readonly str vendor
    cdef readonly str library
    cdef str prefix

    def __init__(self, vendor, names, driver_names):
        self.vendor = vendor
        self.prefix = {"nvidia": "cuda", "amd": "hip"}[vendor]
        # The copy that the process has loaded already (torch's) comes first: two would not share a context's state.
        for loaded_only in (True, False):
            for name in names:
                if self.handle == NULL:
                    self.handle = _open(name, loaded_only)
                    if self.handle != NULL:
                        self.library = name
        if self.handle == NULL:
            raise GpuError(f"none of {', '.join(names)} can be loaded")
        self.driver = self.handle
        for name in driver_names:
            self.driver = _open(name)
            if self.driver != NULL:
                break
        if self.driver == NULL:
            raise GpuError(f"none of {', '.join(driver_names)} can be loaded")
        if vendor == "nvidia":
            self.cuda_launch = <cuda_launch_t>_symbol(self.handle, "cudaLaunchKernelExC")
        else:
            self.hip_launch = <hip_launch_t>_symbol(self.handle, "hipModuleLaunchKernel")

    cdef void* named(self, name) except NULL:
        return _symbol(self.handle, self.prefix + name)

    cdef int check(self, int code, what) except -1:
        if code == 0:
            return 0
        cdef const char* words = (<error_string_t>self.named("GetErrorString"))(code)
        (<none_t>self.named("GetLastError"))()
        raise GpuError(f"{self.prefix}{what} failed with {code}: {words.decode()}")

    def set_device(self, int device):
        self.check((<int_t>self.named("SetDevice"))(device), "SetDevice")

    def synchronize(self):
        cdef none_t call = <none_t>self.named("DeviceSynchronize")
        cdef int code
        with nogil:
            code = call()
        self.check(code, "DeviceSynchronize")

    def malloc_uncached(self, size_t size):
        """Device memory that peers write and this GPU polls: uncached on AMD, ordinary on NVIDIA."""
        cdef void* address = NULL
        if self.vendor == "amd":
            self.check((<malloc_flags_t>self.named("ExtMallocWithFlags"))(&address, size, HIP_UNCACHED),
                       "ExtMallocWithFlags")
        else:
            self.check((<malloc_t>self.named("Malloc"))(&address, size), "Malloc")
        return <uintptr_t>address

    def malloc(self, size_t size):
        cdef void* address = NULL
        self.check((<malloc_t>self.named("Malloc"))(&address, size), "Malloc")
        return <uintptr_t>address

    def free(self, uintptr_t address):
        self.check((<pointer_t>self.named("Free"))(<void*>address), "Free")

    def malloc_host_mapped(self, size_t size):
        """Pinned host memory that kernels can write: (host address, device address)."""
        cdef void* host = NULL
        cdef void* device = NULL
        name = "HostAlloc" if self.vendor == "nvidia" else "HostMalloc"
        cdef unsigned flags = HOST_MAPPED | HOST_PORTABLE
        if self.vendor == "amd":
            flags |= HIP_HOST_COHERENT
        self.check((<malloc_flags_t>self.named(name))(&host, size, flags), name)
        self.check((<device_pointer_t>self.named("HostGetDevicePointer"))(&device, host, 0), "HostGetDevicePointer")
        return <uintptr_t>host, <uintptr_t>device

    def free_host(self, uintptr_t address):
        name = "FreeHost" if self.vendor == "nvidia" else "HostFree"
        self.check((<pointer_t>self.named(name))(<void*>address), name)

    def memset(self, uintptr_t address, int value, size_t size):
        self.check((<memset_t>self.named("Memset"))(<void*>address, value, size), "Memset")

    def write(self, uintptr_t address, const unsigned char[::1] data):
        """Copy host bytes to device memory; returns when they are there."""
        self.check((<memcpy_t>self.named("Memcpy"))(<void*>address, &data[0], data.shape[0], 1), "Memcpy")

    def read(self, uintptr_t address, unsigned char[::1] data):
        """Copy device memory to host bytes."""
        self.check((<memcpy_t>self.named("Memcpy"))(&data[0], <const void*>address, data.shape[0], 2), "Memcpy")

    def enable_peer_access(self, int device, int peer):
        """Let kernels on `device` use `peer`'s memory; False when the hardware cannot. `device` becomes current."""
        cdef int can = 0
        self.check((<can_access_t>self.named("DeviceCanAccessPeer"))(&can, device, peer), "DeviceCanAccessPeer")
        if not can:
            return False
        self.set_device(device)
        cdef int code = (<enable_peer_t>self.named("DeviceEnablePeerAccess"))(peer, 0)
        if code == 704:  # already enabled, in both runtimes
            (<none_t>self.named("GetLastError"))()
        else:
            self.check(code, "DeviceEnablePeerAccess")
        return True

    def share(self, uintptr_t address):
        """(64-byte handle, offset): the handle names the whole allocation, the offset says where in it we are."""
        cdef uint64_t base = 0
        cdef size_t size = 0
        name = "cuMemGetAddressRange_v2" if self.vendor == "nvidia" else "hipMemGetAddressRange"
        cdef int code = (<range_t>_symbol(self.driver, name))(&base, &size, address)
        if code != 0:
            raise GpuError(f"{name} failed with {code}")
        cdef LabIpcHandle handle
        self.check((<get_handle_t>self.named("IpcGetMemHandle"))(&handle, <void*>base), "IpcGetMemHandle")
        return bytes(handle.bytes[:64]), address - base

    def open_shared(self, bytes handle, uint64_t offset):
        """(address, base): `address` is what `share` was given, as this process sees it; close_shared(base) ends it."""
        cdef LabIpcHandle opened
        cdef void* base = NULL
        if len(handle) != 64:
            raise ValueError(f"an IPC handle has 64 bytes, this one {len(handle)}")
        memcpy(opened.bytes, <const char*>handle, 64)
        self.check((<open_handle_t>self.named("IpcOpenMemHandle"))(&base, opened, IPC_LAZY_PEER_ACCESS),
                   "IpcOpenMemHandle")
        return <uintptr_t>base + offset, <uintptr_t>base

    def close_shared(self, uintptr_t base):
        self.check((<pointer_t>self.named("IpcCloseMemHandle"))(<void*>base), "IpcCloseMemHandle")

    def load_module(self, const unsigned char[::1] image):
        """Load a cubin or code object for the current device."""
        cdef void* module = NULL
        if self.vendor == "nvidia":
            self.check((<library_load_t>self.named("LibraryLoadData"))(&module, &image[0], NULL, NULL, 0, NULL, NULL, 0),
                       "LibraryLoadData")
        else:
            self.check((<module_load_t>self.named("ModuleLoadData"))(&module, &image[0]), "ModuleLoadData")
        return <uintptr_t>module

    def kernel(self, uintptr_t module, name):
        """A kernel of a module, loaded now and not at its first launch: a lazy load can wait for a spinning peer."""
        cdef void* function = NULL
        cdef bytes encoded = name.encode()
        cdef char attributes[1024]
        if self.vendor == "nvidia":
            self.check((<library_kernel_t>self.named("LibraryGetKernel"))(&function, <void*>module, encoded),
                       f"LibraryGetKernel({name})")
            self.check((<attributes_t>self.named("FuncGetAttributes"))(attributes, function), "FuncGetAttributes")
        else:
            self.check((<library_kernel_t>self.named("ModuleGetFunction"))(&function, <void*>module, encoded),
                       f"ModuleGetFunction({name})")
        return <uintptr_t>function

    def blocks_per_multiprocessor(self, uintptr_t kernel, int threads):
        """How many blocks of `threads` of this kernel one multiprocessor holds at a time."""
        cdef int blocks = 0
        name = "OccupancyMaxActiveBlocksPerMultiprocessor"
        if self.vendor == "amd":
            name = "Module" + name
        self.check((<occupancy_t>self.named(name))(&blocks, <const void*>kernel, threads, 0), name)
        return blocks

    def launch(self, uintptr_t kernel, unsigned blocks, unsigned threads, const unsigned char[::1] argument,
               uintptr_t stream, bint overlap):
        """Launch with one by-value argument on a stream of the current device. Captured when the stream is.

        `overlap` lets the launch be placed before its predecessor has ended (NVIDIA): see start_after_predecessor.
        """
        cdef void* arguments[1]
        arguments[0] = <void*>&argument[0]
        cdef LabLaunchAttribute attribute
        cdef LabLaunchConfig config
        cdef int code
        if self.vendor == "nvidia":
            config.grid.x, config.grid.y, config.grid.z = blocks, 1, 1
            config.block.x, config.block.y, config.block.z = threads, 1, 1
            config.shared, config.stream = 0, <void*>stream
            attribute.id, attribute.value.number = PROGRAMMATIC_STREAM_SERIALIZATION, 1
            config.attributes, config.count = &attribute, overlap
            code = self.cuda_launch(&config, <const void*>kernel, arguments)
        else:
            code = self.hip_launch(<void*>kernel, blocks, 1, 1, threads, 1, 1, 0, <void*>stream, arguments, NULL)
        if code != 0:
            self.check(code, "LaunchKernel")
