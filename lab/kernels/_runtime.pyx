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
    typedef struct { int id; char pad[4]; union { char bytes[64]; int number; } value; } LabLaunchAttribute;
    typedef struct {                                   /* CUlaunchConfig */
        unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
        void* stream;
        LabLaunchAttribute* attributes;
        unsigned count;
    } LabLaunchConfig;
    """
    ctypedef union LabAttributeValue:
        int number
    ctypedef struct LabLaunchAttribute:
        int id
        LabAttributeValue value
    ctypedef struct LabLaunchConfig:
        unsigned grid_x
        unsigned grid_y
        unsigned grid_z
        unsigned block_x
        unsigned block_y
        unsigned block_z
        unsigned shared
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
ctypedef int (*int_out_t)(int*) noexcept nogil
ctypedef int (*none_t)() noexcept nogil
ctypedef int (*pointer_t)(void*) noexcept nogil
ctypedef int (*malloc_t)(void**, size_t) noexcept nogil
ctypedef int (*malloc_flags_t)(void**, size_t, unsigned) noexcept nogil
ctypedef int (*memset_t)(void*, int, size_t) noexcept nogil
ctypedef int (*memcpy_t)(void*, const void*, size_t, int) noexcept nogil
ctypedef int (*memcpy_async_t)(void*, const void*, size_t, int, void*) noexcept nogil
ctypedef int (*device_pointer_t)(void**, void*, unsigned) noexcept nogil
ctypedef int (*get_handle_t)(LabIpcHandle*, void*) noexcept nogil
ctypedef int (*open_handle_t)(void**, LabIpcHandle, unsigned) noexcept nogil
ctypedef int (*can_access_t)(int*, int, int) noexcept nogil
ctypedef int (*enable_peer_t)(int, unsigned) noexcept nogil
ctypedef int (*p2p_attribute_t)(int*, int, int, int) noexcept nogil
ctypedef int (*link_type_t)(int, int, uint32_t*, uint32_t*) noexcept nogil
ctypedef int (*bus_id_t)(char*, int, int) noexcept nogil
ctypedef int (*by_bus_id_t)(int*, const char*) noexcept nogil
ctypedef int (*range_t)(uint64_t*, size_t*, uint64_t) noexcept nogil
ctypedef const char* (*error_string_t)(int) noexcept nogil
ctypedef int (*driver_error_string_t)(int, const char**) noexcept nogil
ctypedef int (*module_load_t)(void**, const void*) noexcept nogil
ctypedef int (*module_function_t)(void**, void*, const char*) noexcept nogil
ctypedef int (*function_attribute_t)(int*, int, void*) noexcept nogil
ctypedef int (*occupancy_t)(int*, void*, int, size_t) noexcept nogil
ctypedef int (*create_flags_t)(void**, unsigned) noexcept nogil
ctypedef int (*two_pointers_t)(void*, void*) noexcept nogil
ctypedef int (*wait_event_t)(void*, void*, unsigned) noexcept nogil
ctypedef int (*capture_info_t)(void*, int*, uint64_t*, void**, void**, size_t*) noexcept nogil
ctypedef int (*cuda_launch_t)(const LabLaunchConfig*, void*, void**, void**) noexcept nogil
ctypedef int (*hip_launch_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                             void**, void**) noexcept nogil

cdef enum:
    IPC_LAZY_PEER_ACCESS = 1
    HOST_MAPPED = 2
    HOST_PORTABLE = 1
    HIP_HOST_COHERENT = 0x40000000  # seen by the host while the kernel runs
    HIP_UNCACHED = 3
    EVENT_WITHOUT_TIME = 2
    STREAM_NON_BLOCKING = 1
    PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID
    NUMBER_OF_REGISTERS = 4  # CUfunction_attribute
    NATIVE_ATOMICS = 3  # cudaDeviceP2PAttr: over NVLink, not over PCIe
    XGMI = 4  # hsa_amd_link_info_type_t
    NO_CONTEXT = 201
    PEER_ACCESS_IS_ON = 704
    OLDEST_CUDA = 12000
    LARGEST_ARGUMENT = 1024


cdef class Gpu:
    """One GPU runtime. `vendor` is "nvidia" or "amd"; `library` is the name under which it was loaded.

    Methods raise GpuError with the runtime's own words and let other threads run while the runtime works.
    Device-dependent calls act on the current device: make them within `on(device)`.

    Kernels are loaded and launched by the driver's interface (cuModule*, cuLaunchKernelEx): it is the same from CUDA
    12.0 on, where the runtime's cudaLibrary* came only with 12.8.
    """

    cdef void* handle
    cdef void* driver
    cdef cuda_launch_t cuda_launch
    cdef hip_launch_t hip_launch
    cdef int_t set_current
    cdef int_out_t get_current
    cdef capture_info_t capture_info
    cdef readonly str vendor
    cdef readonly str library
    cdef str prefix

    def __init__(self, vendor, names, driver_names):
        cdef int version = 0
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
            self.check((<int_out_t>self.named("RuntimeGetVersion"))(&version), "RuntimeGetVersion")
            if version < OLDEST_CUDA:
                raise GpuError(f"CUDA {version // 1000}.{version % 1000 // 10} is too old: 12.0 or later is needed")
            self.cuda_launch = <cuda_launch_t>_symbol(self.driver, "cuLaunchKernelEx")
            self.capture_info = <capture_info_t>_symbol(self.driver, "cuStreamGetCaptureInfo_v2")
        else:
            self.hip_launch = <hip_launch_t>_symbol(self.handle, "hipModuleLaunchKernel")
            self.capture_info = <capture_info_t>_symbol(self.handle, "hipStreamGetCaptureInfo_v2")
        self.set_current = <int_t>self.named("SetDevice")
        self.get_current = <int_out_t>self.named("GetDevice")

    cdef void* named(self, name) except NULL:
        return _symbol(self.handle, self.prefix + name)

    cdef void* named_of_driver(self, name) except NULL:
        return _symbol(self.driver, {"nvidia": "cu", "amd": "hip"}[self.vendor] + name)

    cdef int check(self, int code, what) except -1:
        if code == 0:
            return 0
        cdef const char* words = (<error_string_t>self.named("GetErrorString"))(code)
        (<none_t>self.named("GetLastError"))()
        raise GpuError(f"{self.prefix}{what} failed with {code}: {words.decode()}")

    cdef int check_driver(self, int code, what) except -1:
        if code == 0 or self.vendor == "amd":
            return self.check(code, what)
        cdef const char* words = NULL
        (<driver_error_string_t>_symbol(self.driver, "cuGetErrorString"))(code, &words)
        raise GpuError(f"cu{what} failed with {code}: {words.decode() if words != NULL else 'unknown error'}")

    def current_device(self):
        cdef int device = 0
        cdef int code
        with nogil:
            code = self.get_current(&device)
        self.check(code, "GetDevice")
        return device

    def set_device(self, int device):
        cdef int code
        with nogil:
            code = self.set_current(device)
        self.check(code, "SetDevice")

    def on(self, int device):
        """A context in which `device` is this thread's current one; what was current before is so again after."""
        return _On(self, device)

    def synchronize(self):
        cdef none_t call = <none_t>self.named("DeviceSynchronize")
        cdef int code
        with nogil:
            code = call()
        self.check(code, "DeviceSynchronize")

    def malloc_uncached(self, size_t size):
        """Device memory that peers write and this GPU polls: uncached on AMD, ordinary on NVIDIA."""
        if self.vendor != "amd":
            return self.malloc(size)
        cdef void* address = NULL
        cdef malloc_flags_t call = <malloc_flags_t>self.named("ExtMallocWithFlags")
        cdef int code
        with nogil:
            code = call(&address, size, HIP_UNCACHED)
        self.check(code, "ExtMallocWithFlags")
        return <uintptr_t>address

    def malloc(self, size_t size):
        cdef void* address = NULL
        cdef malloc_t call = <malloc_t>self.named("Malloc")
        cdef int code
        with nogil:
            code = call(&address, size)
        self.check(code, "Malloc")
        return <uintptr_t>address

    cdef int release(self, name, uintptr_t what) except -1:
        cdef pointer_t call = <pointer_t>self.named(name)
        cdef int code
        with nogil:
            code = call(<void*>what)
        return self.check(code, name)

    def free(self, uintptr_t address):
        self.release("Free", address)

    def malloc_host_mapped(self, size_t size):
        """Pinned host memory that kernels can write: (host address, device address)."""
        cdef void* host = NULL
        cdef void* device = NULL
        name = "HostAlloc" if self.vendor == "nvidia" else "HostMalloc"
        cdef malloc_flags_t take = <malloc_flags_t>self.named(name)
        cdef device_pointer_t find = <device_pointer_t>self.named("HostGetDevicePointer")
        cdef unsigned flags = HOST_MAPPED | HOST_PORTABLE
        cdef int code
        if self.vendor == "amd":
            flags |= HIP_HOST_COHERENT
        with nogil:
            code = take(&host, size, flags)
        self.check(code, name)
        with nogil:
            code = find(&device, host, 0)
        try:
            self.check(code, "HostGetDevicePointer")
        except GpuError:
            self.free_host(<uintptr_t>host)
            raise
        return <uintptr_t>host, <uintptr_t>device

    def free_host(self, uintptr_t address):
        self.release("FreeHost" if self.vendor == "nvidia" else "HostFree", address)

    def memset(self, uintptr_t address, int value, size_t size):
        cdef memset_t call = <memset_t>self.named("Memset")
        cdef int code
        with nogil:
            code = call(<void*>address, value, size)
        self.check(code, "Memset")

    def write(self, uintptr_t address, const unsigned char[::1] data):
        """Copy host bytes to device memory; returns when they are there."""
        cdef memcpy_t call = <memcpy_t>self.named("Memcpy")
        cdef int code
        with nogil:
            code = call(<void*>address, &data[0], data.shape[0], 1)
        self.check(code, "Memcpy")

    def read(self, uintptr_t address, unsigned char[::1] data):
        """Copy device memory to host bytes."""
        cdef memcpy_t call = <memcpy_t>self.named("Memcpy")
        cdef int code
        with nogil:
            code = call(&data[0], <const void*>address, data.shape[0], 2)
        self.check(code, "Memcpy")

    def new_stream(self):
        """A stream that waits for no other one, the default stream included."""
        cdef void* stream = NULL
        cdef create_flags_t call = <create_flags_t>self.named("StreamCreateWithFlags")
        cdef int code
        with nogil:
            code = call(&stream, STREAM_NON_BLOCKING)
        self.check(code, "StreamCreateWithFlags")
        return <uintptr_t>stream

    def free_stream(self, uintptr_t stream):
        self.release("StreamDestroy", stream)

    def write_beside(self, uintptr_t stream, uintptr_t address, const unsigned char[::1] data):
        """`write` on a stream of its own, so also while a kernel runs; returns when the bytes are there."""
        cdef memcpy_async_t copy = <memcpy_async_t>self.named("MemcpyAsync")
        cdef pointer_t wait = <pointer_t>self.named("StreamSynchronize")
        cdef int code
        with nogil:
            code = copy(<void*>address, &data[0], data.shape[0], 1, <void*>stream)
            if code == 0:
                code = wait(<void*>stream)
        self.check(code, "MemcpyAsync")

    def new_event(self):
        """An event that keeps no time."""
        cdef void* event = NULL
        cdef create_flags_t call = <create_flags_t>self.named("EventCreateWithFlags")
        cdef int code
        with nogil:
            code = call(&event, EVENT_WITHOUT_TIME)
        self.check(code, "EventCreateWithFlags")
        return <uintptr_t>event

    def free_event(self, uintptr_t event):
        self.release("EventDestroy", event)

    def order(self, uintptr_t event, uintptr_t before, uintptr_t after):
        """What is queued on `after` from now on waits for what is queued on `before` so far; captured when they are."""
        cdef two_pointers_t record = <two_pointers_t>self.named("EventRecord")
        cdef wait_event_t wait = <wait_event_t>self.named("StreamWaitEvent")
        cdef int code
        with nogil:
            code = record(<void*>event, <void*>before)
        self.check(code, "EventRecord")
        with nogil:
            code = wait(<void*>after, <void*>event, 0)
        self.check(code, "StreamWaitEvent")

    def capture_of(self, uintptr_t stream):
        """The number of the capture that `stream` takes part in, 0 for none."""
        cdef int status = 0
        cdef uint64_t number = 0
        cdef int code
        with nogil:
            code = self.capture_info(<void*>stream, &status, &number, NULL, NULL, NULL)
        self.check_driver(code, "StreamGetCaptureInfo")
        return number + 1 if status != 0 else 0

    def enable_peer_access(self, int device, int peer):
        """Let kernels on `device` use `peer`'s memory; False when the hardware cannot."""
        cdef int can = 0
        cdef can_access_t ask = <can_access_t>self.named("DeviceCanAccessPeer")
        cdef enable_peer_t enable = <enable_peer_t>self.named("DeviceEnablePeerAccess")
        cdef int code
        with nogil:
            code = ask(&can, device, peer)
        self.check(code, "DeviceCanAccessPeer")
        if not can:
            return False
        with self.on(device):
            with nogil:
                code = enable(peer, 0)
            if code == PEER_ACCESS_IS_ON:
                (<none_t>self.named("GetLastError"))()
            else:
                self.check(code, "DeviceEnablePeerAccess")
        return True

    def bus_id(self, int device):
        """Where a GPU sits, the same words in every process: "0000:1b:00.0"."""
        cdef char words[64]
        cdef bus_id_t call = <bus_id_t>self.named("DeviceGetPCIBusId")
        cdef int code
        with nogil:
            code = call(words, 64, device)
        self.check(code, "DeviceGetPCIBusId")
        return (<bytes>words).decode()

    def link(self, int device, bus_id):
        """What joins `device` to the GPU at `bus_id`.

        "same", "nvlink", "xgmi", "pcie", "none" (no access to its memory), or "hidden" (this process cannot see it).
        """
        cdef bytes encoded = bus_id.encode()
        cdef const char* words = encoded
        cdef by_bus_id_t find = <by_bus_id_t>self.named("DeviceGetByPCIBusId")
        cdef can_access_t ask = <can_access_t>self.named("DeviceCanAccessPeer")
        cdef p2p_attribute_t attribute
        cdef link_type_t link_type
        cdef int peer = -1, can = 0, atomics = 0, code
        cdef uint32_t kind = 0, hops = 0
        with nogil:
            code = find(&peer, words)
        if code != 0:
            (<none_t>self.named("GetLastError"))()
            return "hidden"
        if peer == device:
            return "same"
        with nogil:
            code = ask(&can, device, peer)
        self.check(code, "DeviceCanAccessPeer")
        if not can:
            return "none"
        if self.vendor == "nvidia":
            attribute = <p2p_attribute_t>self.named("DeviceGetP2PAttribute")
            with nogil:
                code = attribute(&atomics, NATIVE_ATOMICS, device, peer)
            self.check(code, "DeviceGetP2PAttribute")
            return "nvlink" if atomics else "pcie"
        link_type = <link_type_t>self.named("ExtGetLinkTypeAndHopCount")
        with nogil:
            code = link_type(device, peer, &kind, &hops)
        self.check(code, "ExtGetLinkTypeAndHopCount")
        return "xgmi" if kind == XGMI else "pcie"

    def share(self, uintptr_t address):
        """(64-byte handle, offset): the handle names the whole allocation, the offset says where in it we are."""
        cdef uint64_t base = 0
        cdef size_t size = 0
        name = "MemGetAddressRange_v2" if self.vendor == "nvidia" else "MemGetAddressRange"
        cdef range_t find = <range_t>self.named_of_driver(name)
        cdef get_handle_t take = <get_handle_t>self.named("IpcGetMemHandle")
        cdef LabIpcHandle handle
        cdef int code
        with nogil:
            code = find(&base, &size, address)
        self.check_driver(code, name)
        with nogil:
            code = take(&handle, <void*>base)
        self.check(code, "IpcGetMemHandle")
        return bytes(handle.bytes[:64]), address - base

    def open_shared(self, bytes handle, uint64_t offset):
        """(address, base): `address` is what `share` was given, as this process sees it; close_shared(base) ends it."""
        cdef LabIpcHandle opened
        cdef void* base = NULL
        cdef open_handle_t call = <open_handle_t>self.named("IpcOpenMemHandle")
        cdef int code
        if len(handle) != 64:
            raise ValueError(f"an IPC handle has 64 bytes, this one {len(handle)}")
        memcpy(opened.bytes, <const char*>handle, 64)
        with nogil:
            code = call(&base, opened, IPC_LAZY_PEER_ACCESS)
        self.check(code, "IpcOpenMemHandle")
        return <uintptr_t>base + offset, <uintptr_t>base

    def close_shared(self, uintptr_t base):
        self.release("IpcCloseMemHandle", base)

    def load_module(self, const unsigned char[::1] image):
        """Load a cubin or code object for the current device."""
        cdef void* module = NULL
        cdef module_load_t call = <module_load_t>self.named_of_driver("ModuleLoadData")
        cdef int code
        with nogil:
            code = call(&module, &image[0])
        self.check_driver(code, "ModuleLoadData")
        return <uintptr_t>module

    def unload_module(self, uintptr_t module):
        cdef pointer_t call = <pointer_t>self.named_of_driver("ModuleUnload")
        cdef int code
        with nogil:
            code = call(<void*>module)
        self.check_driver(code, "ModuleUnload")

    def kernel(self, uintptr_t module, name):
        """A kernel of a module, loaded now and not at its first launch: a lazy load can wait for a spinning peer."""
        cdef void* function = NULL
        cdef bytes encoded = name.encode()
        cdef const char* words = encoded
        cdef int registers = 0, code
        cdef module_function_t find = <module_function_t>self.named_of_driver("ModuleGetFunction")
        cdef function_attribute_t look
        with nogil:
            code = find(&function, <void*>module, words)
        self.check_driver(code, f"ModuleGetFunction({name})")
        if self.vendor == "nvidia":
            look = <function_attribute_t>self.named_of_driver("FuncGetAttribute")
            with nogil:
                code = look(&registers, NUMBER_OF_REGISTERS, function)
            self.check_driver(code, "FuncGetAttribute")
        return <uintptr_t>function

    def blocks_per_multiprocessor(self, uintptr_t kernel, int threads):
        """How many blocks of `threads` of this kernel one multiprocessor holds at a time."""
        cdef int blocks = 0
        cdef int code
        name = "OccupancyMaxActiveBlocksPerMultiprocessor"
        if self.vendor == "amd":
            name = "Module" + name
        cdef occupancy_t ask = <occupancy_t>self.named_of_driver(name)
        with nogil:
            code = ask(&blocks, <void*>kernel, threads, 0)
        self.check_driver(code, name)
        return blocks

    cdef int queue(self, int device, void* kernel, unsigned blocks, unsigned threads, void* argument, void* stream,
                   bint overlap) noexcept nogil:
        """Launch with one by-value argument; the caller's device stays current. Returns the runtime's code."""
        cdef void* arguments[1]
        cdef LabLaunchAttribute attribute
        cdef LabLaunchConfig config
        cdef int current = 0
        cdef int code = self.get_current(&current)
        if code == 0 and current != device:
            code = self.set_current(device)
        if code != 0:
            return code
        arguments[0] = argument
        if self.cuda_launch != NULL:
            config.grid_x, config.grid_y, config.grid_z = blocks, 1, 1
            config.block_x, config.block_y, config.block_z = threads, 1, 1
            config.shared, config.stream = 0, stream
            attribute.id, attribute.value.number = PROGRAMMATIC_STREAM_SERIALIZATION, 1
            config.attributes, config.count = &attribute, overlap
            code = self.cuda_launch(&config, kernel, arguments, NULL)
            if code == NO_CONTEXT:  # a thread in which nothing has touched the device yet
                code = self.set_current(device)
                if code == 0:
                    code = self.cuda_launch(&config, kernel, arguments, NULL)
        else:
            code = self.hip_launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL)
        if current != device:
            self.set_current(current)
        return code


cdef class _On:
    cdef Gpu gpu
    cdef int device
    cdef int before

    def __init__(self, Gpu gpu, int device):
        self.gpu, self.device = gpu, device

    def __enter__(self):
        self.before = self.gpu.current_device()
        # Also where it is current by default: that alone gives the driver's interface no context in a new thread.
        self.gpu.set_device(self.device)

    def __exit__(self, *_):
        if self.before != self.device:
            self.gpu.set_device(self.before)


cdef class Launcher:
    """Launches on one device whose argument differs in a few words only; the rest is kept ready as bytes.

    Args:
        gpu: the runtime.
        device: where to launch.
        argument: the bytes of the kernel's argument.
        places: byte offsets in it of the 64-bit words "input", "output", "count" and "trace", and of the 32-bit words
            "blocks", "threads" and "flag".
    """

    cdef Gpu gpu
    cdef int device
    cdef size_t size
    cdef size_t input, output, count, trace, blocks, threads, flag
    cdef char argument[LARGEST_ARGUMENT]

    def __init__(self, Gpu gpu, int device, bytes argument, dict places):
        if len(argument) > LARGEST_ARGUMENT:
            raise ValueError(f"an argument of {len(argument)} bytes; {LARGEST_ARGUMENT} is the most")
        self.gpu, self.device, self.size = gpu, device, len(argument)
        memcpy(self.argument, <const char*>argument, self.size)
        self.input, self.output, self.count = places["input"], places["output"], places["count"]
        self.trace, self.flag = places["trace"], places["flag"]
        self.blocks, self.threads = places["blocks"], places["threads"]

    def launch(self, uintptr_t kernel, uint32_t blocks, uint32_t threads, uint64_t source, uint64_t target,
               uint64_t count, uintptr_t stream, bint overlap, uint32_t flag, uint64_t trace):
        """Queue one launch on `stream`. Captured when the stream is.

        `overlap` lets the launch be placed before its predecessor has ended (NVIDIA): see start_after_predecessor.
        """
        cdef char argument[LARGEST_ARGUMENT]
        cdef int code
        with nogil:
            memcpy(argument, self.argument, self.size)
            memcpy(argument + self.input, &source, 8)
            memcpy(argument + self.output, &target, 8)
            memcpy(argument + self.count, &count, 8)
            memcpy(argument + self.trace, &trace, 8)
            memcpy(argument + self.blocks, &blocks, 4)
            memcpy(argument + self.threads, &threads, 4)
            memcpy(argument + self.flag, &flag, 4)
            code = self.gpu.queue(self.device, <void*>kernel, blocks, threads, argument, <void*>stream, overlap)
        if code != 0:
            self.gpu.check_driver(code, "LaunchKernel")
