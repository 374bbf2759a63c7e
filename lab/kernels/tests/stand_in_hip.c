/* A stand-in for libamdhip64 on a machine without one: host memory, the documented signatures, a log of
   calls. It shows that the bridge calls what it means to call, in which order, and what it gives back; it says
   nothing about an AMD GPU. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char bytes[64];
} Handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char record[1 << 16];
static size_t written;
static int silent;
static char failing[64];
static long failing_after;
static char* allocation;
static size_t allocated;
static __thread int current;
static long live[4]; /* device memory, host memory, events and streams, modules */
static volatile int running; /* while set, a device synchronisation waits */
static int capture_status;
static uint64_t capture_number;
static int link_type = 4;

static void say(const char* format, ...) {
    if (silent) return;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    if (written < sizeof record - 512)
        written += vsnprintf(record + written, sizeof record - written, format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}
static void count(int kind, int by) {
    pthread_mutex_lock(&lock);
    live[kind] += by;
    pthread_mutex_unlock(&lock);
}
/* Whether this call of `name` is to fail; code 2, "out of memory". */
static int fails(const char* name) { return !strcmp(name, failing) && failing_after-- <= 0 ? 2 : 0; }
#define MAYBE(name)                                                                                                    \
    if (fails(name)) return 2

const char* stand_in_log(void) { return record; }
void stand_in_clear(void) { written = 0, record[0] = 0; }
void stand_in_silent(int yes) { silent = yes; }
void stand_in_fail(const char* name, long after) { strncpy(failing, name, 63), failing_after = after; }
long stand_in_live(int kind) { return live[kind]; }
void stand_in_run(int yes) { running = yes; }
void stand_in_capture(int status, uint64_t number) { capture_status = status, capture_number = number; }
void stand_in_link(int type) { link_type = type; }

int hipSetDevice(int device) {
    current = device;
    say("SetDevice %d\n", device);
    return 0;
}
int hipGetDevice(int* device) {
    *device = current;
    return 0;
}
int hipDeviceSynchronize(void) {
    while (running) usleep(1000);
    return fails("DeviceSynchronize");
}
int hipGetLastError(void) { return 0; }
const char* hipGetErrorString(int code) { return code == 2 ? "out of memory" : "other"; }
int hipMalloc(void** p, size_t n) {
    MAYBE("Malloc");
    *p = malloc(n);
    count(0, 1);
    return 0;
}
int hipExtMallocWithFlags(void** p, size_t n, unsigned flags) {
    say("ExtMallocWithFlags %zu %u\n", n, flags);
    MAYBE("ExtMallocWithFlags");
    if (n > 1u << 30) return 2;
    *p = allocation = malloc(n);
    allocated = n;
    count(0, 1);
    return 0;
}
int hipFree(void* p) {
    say("Free\n");
    free(p);
    count(0, -1);
    return fails("Free");
}
int hipHostMalloc(void** p, size_t n, unsigned flags) {
    say("HostMalloc %zu %#x\n", n, flags);
    MAYBE("HostMalloc");
    *p = calloc(1, n);
    count(1, 1);
    return 0;
}
int hipHostGetDevicePointer(void** d, void* h, unsigned flags) {
    MAYBE("HostGetDevicePointer");
    *d = h;
    return flags;
}
int hipHostFree(void* p) {
    free(p);
    count(1, -1);
    return 0;
}
int hipMemset(void* p, int value, size_t n) {
    MAYBE("Memset");
    memset(p, value, n);
    return 0;
}
int hipMemcpy(void* to, const void* from, size_t n, int kind) {
    say("Memcpy %zu %d\n", n, kind);
    memcpy(to, from, n);
    return 0;
}
/* The stand-in's kernels end when their waits are given up, as real ones do. */
int hipMemcpyAsync(void* to, const void* from, size_t n, int kind, void* stream) {
    say("MemcpyAsync %zu %d\n", n, kind);
    memcpy(to, from, n);
    running = 0;
    return 0;
}
int hipStreamCreateWithFlags(void** stream, unsigned flags) {
    MAYBE("StreamCreateWithFlags");
    *stream = malloc(1);
    count(2, 1);
    return flags != 1;
}
int hipStreamSynchronize(void* stream) { return stream == 0; }
int hipStreamDestroy(void* stream) {
    free(stream);
    count(2, -1);
    return 0;
}
int hipEventCreateWithFlags(void** event, unsigned flags) {
    MAYBE("EventCreateWithFlags");
    *event = malloc(1);
    count(2, 1);
    return flags != 2;
}
int hipEventDestroy(void* event) {
    free(event);
    count(2, -1);
    return 0;
}
int hipEventRecord(void* event, void* stream) {
    say("Record %p\n", stream);
    return event == 0;
}
int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
    say("Wait %p\n", stream);
    return event == 0 || flags;
}
int hipStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* number, void** graph, void** ahead, size_t* n) {
    *status = capture_status, *number = capture_number;
    return graph != 0 || ahead != 0 || n != 0;
}
int hipDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer && peer < 8;
    return 0;
}
int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    say("EnablePeerAccess %d %u\n", peer, flags);
    return 704;
}
int hipDeviceGetPCIBusId(char* words, int n, int device) {
    return snprintf(words, n, "0000:%02x:00.0", device + 16) >= n;
}
int hipDeviceGetByPCIBusId(int* device, const char* words) {
    unsigned bus;
    if (sscanf(words, "0000:%x:00.0", &bus) != 1 || bus < 16 || bus >= 32) return 101;
    *device = bus - 16;
    return 0;
}
int hipExtGetLinkTypeAndHopCount(int device, int peer, uint32_t* type, uint32_t* hops) {
    *type = link_type, *hops = 1;
    return device == peer;
}
int hipMemGetAddressRange(void** base, size_t* n, void* p) {
    if ((char*)p < allocation || (char*)p >= allocation + allocated) return 1;
    *base = allocation, *n = allocated;
    return 0;
}
int hipIpcGetMemHandle(Handle* handle, void* p) {
    MAYBE("IpcGetMemHandle");
    memset(handle, 7, 64);
    memcpy(handle, &p, sizeof p);
    return 0;
}
int hipIpcOpenMemHandle(void** p, Handle handle, unsigned flags) {
    MAYBE("IpcOpenMemHandle");
    memcpy(p, &handle, sizeof *p);
    return flags != 1;
}
int hipIpcCloseMemHandle(void* p) {
    say("IpcCloseMemHandle %d\n", p == allocation);
    return fails("IpcCloseMemHandle");
}
int hipModuleLoadData(void** module, const void* image) {
    if (memcmp(image, "code", 4)) return 1;
    *module = (void*)image;
    count(3, 1);
    return 0;
}
int hipModuleUnload(void* module) {
    count(3, -1);
    return module == 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
    MAYBE("ModuleGetFunction");
    *function = strdup(name);
    return module == 0;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* f, int threads, size_t shared) {
    *blocks = 2048 / threads;
    return shared != 0;
}
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
    say("Launch %s %u %u %u %u %u %u %u %p %.5s %p\n", (char*)f, gx, gy, gz, bx, by, bz, shared, stream,
        (char*)arguments[0], (void*)extra);
    return fails("Launch");
}
