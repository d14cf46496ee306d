/* The part of the CUDA runtime that capsedge calls, over host memory: what a machine without a GPU can test.
 * Calls are counted and can be made to fail; a captured graph calls back when it is launched. For several threads. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kOk = 0, kInvalid = 1, kMemory = 2, kCapture = 901 };
static atomic_int live_device, live_host, live_streams, live_graphs, fail_capture, devices = 1, capability = 87;
static _Thread_local int capturing, current;
static _Thread_local intptr_t captured;
static atomic_size_t memory_limit = SIZE_MAX, memory_used;
static void (*_Atomic on_launch)(intptr_t graph);
static atomic_intptr_t next_handle = 0x1000;

/* The real one is shut down while the process ends, before objects that are older than it. */
enum { kUnloading = 4 };
static int ended;
static void end(void) { ended = 1; }
__attribute__((constructor)) static void start(void) { atexit(end); }

int fake_count(int what) {
  switch (what) { case 0: return live_device; case 1: return live_host; case 2: return live_streams; default: return live_graphs; }
}
int fake_capturing(void) { return capturing; }
intptr_t fake_captured(void) { return captured; }
void fake_set(int new_devices, int new_capability, int new_fail_capture, size_t limit) {
  devices = new_devices;
  capability = new_capability;
  fail_capture = new_fail_capture;
  memory_limit = limit;
}
void fake_on_launch(void (*callback)(intptr_t)) { on_launch = callback; }

int cudaGetDeviceCount(int* n) { *n = devices; return devices ? kOk : 100; }
int cudaGetDevice(int* d) { *d = current; return ended ? kUnloading : kOk; }
int cudaSetDevice(int d) { return ended ? kUnloading : d >= 0 && d < devices ? (current = d, kOk) : 101; }
int cudaDeviceGetAttribute(int* v, int what, int d) {
  (void)d;
  *v = what == 75 ? capability / 10 : what == 76 ? capability % 10 : 0;
  return kOk;
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total) { *free_bytes = 1u << 30; *total = 1u << 31; return kOk; }
int cudaDriverGetVersion(int* v) { *v = 13000; return kOk; }
int cudaRuntimeGetVersion(int* v) { *v = 13000; return kOk; }
int cudaMalloc(void** p, size_t n) {
  if (capturing) return kCapture; /* as the real one: no allocation while capturing */
  if (memory_used + n > memory_limit) return kMemory;
  size_t* block = malloc(n + 64);
  *block = n;
  memory_used += n;
  live_device++;
  *p = (char*)block + 64;
  memset(*p, 0xFF, n); /* NaN where nothing was written */
  return kOk;
}
int cudaFree(void* p) {
  if (!p) return kOk;
  size_t* block = (size_t*)((char*)p - 64);
  memory_used -= *block;
  live_device--;
  free(block);
  return kOk;
}
int cudaHostAlloc(void** p, size_t n, unsigned flags) { (void)flags; *p = malloc(n); live_host++; return kOk; }
int cudaFreeHost(void* p) { free(p); live_host--; return kOk; }
int cudaMemcpyAsync(void* to, const void* from, size_t n, int kind, void* stream) {
  if (!stream || kind < 1 || kind > 3) return kInvalid;
  memcpy(to, from, n);
  return kOk;
}
int cudaStreamCreateWithFlags(void** s, unsigned flags) {
  if (flags != 1) return kInvalid;
  *s = (void*)(next_handle += 16);
  live_streams++;
  return kOk;
}
int cudaStreamDestroy(void* s) { (void)s; live_streams--; return kOk; }
int cudaStreamSynchronize(void* s) { (void)s; return capturing ? kCapture : kOk; }
int cudaStreamBeginCapture(void* s, int mode) { (void)s; if (mode != 1) return kInvalid; capturing = 1; captured = next_handle += 16; return kOk; }
int cudaStreamEndCapture(void* s, void** graph) {
  (void)s;
  capturing = 0;
  *graph = fail_capture ? 0 : (void*)captured;
  return fail_capture ? kCapture : kOk;
}
int cudaGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) { (void)flags; *exec = graph; live_graphs++; return kOk; }
int cudaGraphLaunch(void* exec, void* stream) { (void)stream; void (*call)(intptr_t) = on_launch; if (call) call((intptr_t)exec); return kOk; }
int cudaGraphExecDestroy(void* exec) { (void)exec; live_graphs--; return kOk; }
int cudaGraphDestroy(void* graph) { (void)graph; return kOk; }
int cudaGetLastError(void) { return kOk; }
const char* cudaGetErrorString(int code) {
  return code == kMemory ? "out of memory" : code == kCapture ? "operation not permitted when stream is capturing" : code ? "invalid" : "no error";
}
