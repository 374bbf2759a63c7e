/* A stand-in for libamdhip64 on a machine without one: host memory, the documented signatures, a log of
   calls. It shows that the bridge calls what it means to call; it says nothing about an AMD GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char bytes[64];
} Handle;
static char record[1 << 16];
#define LOG(...) sprintf(record + strlen(record), __VA_ARGS__)
static char* allocation;
static size_t allocated;

const char* stand_in_log(void) { return record; }
int hipSetDevice(int device) {
    LOG("SetDevice %d\n", device);
    return 0;
}
int hipDeviceSynchronize(void) { return 0; }
int hipGetLastError(void) { return 0; }
const char* hipGetErrorString(int code) { return code == 2 ? "out of memory" : "other"; }
int hipMalloc(void** p, size_t n) {
    *p = malloc(n);
    return 0;
}
int hipExtMallocWithFlags(void** p, size_t n, unsigned flags) {
    LOG("ExtMallocWithFlags %zu %u\n", n, flags);
    if (n > 1u << 30) return 2;
    *p = allocation = malloc(n);
    allocated = n;
    return 0;
}
int hipFree(void* p) {
    free(p);
    return 0;
}
int hipHostMalloc(void** p, size_t n, unsigned flags) {
    LOG("HostMalloc %zu %#x\n", n, flags);
    *p = malloc(n);
    return 0;
}
int hipHostGetDevicePointer(void** d, void* h, unsigned flags) {
    *d = h;
    return flags;
}
int hipHostFree(void* p) {
    free(p);
    return 0;
}
int hipMemset(void* p, int value, size_t n) {
    memset(p, value, n);
    return 0;
}
int hipMemcpy(void* to, const void* from, size_t n, int kind) {
    LOG("Memcpy %zu %d\n", n, kind);
    memcpy(to, from, n);
    return 0;
}
int hipDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer && peer < 2;
    return 0;
}
int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    LOG("EnablePeerAccess %d %u\n", peer, flags);
    return 704;
}
int hipMemGetAddressRange(void** base, size_t* n, void* p) {
    if ((char*)p < allocation || (char*)p >= allocation + allocated) return 1;
    *base = allocation, *n = allocated;
    return 0;
}
int hipIpcGetMemHandle(Handle* handle, void* p) {
    memset(handle, 7, 64);
    memcpy(handle, &p, sizeof p);
    return 0;
}
int hipIpcOpenMemHandle(void** p, Handle handle, unsigned flags) {
    memcpy(p, &handle, sizeof *p);
    return flags != 1;
}
int hipIpcCloseMemHandle(void* p) {
    LOG("IpcCloseMemHandle %d\n", p == allocation);
    return 0;
}
int hipModuleLoadData(void** module, const void* image) {
    *module = (void*)image;
    return memcmp(image, "code", 4) != 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
    *function = strdup(name);
    return module == 0;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* f, int threads, size_t shared) {
    *blocks = 2048 / threads;
    return shared != 0;
}
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
    LOG("Launch %s %u %u %u %u %u %u %u %p %.5s %p\n", (char*)f, gx, gy, gz, bx, by, bz, shared, stream,
        (char*)arguments[0], (void*)extra);
    return 0;
}
