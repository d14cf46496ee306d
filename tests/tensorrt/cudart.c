/* The part of the CUDA runtime that capsedge calls, over host memory: what a machine without a GPU can test. As unkind as
 * the real one: what is put on a stream happens when somebody waits for it and not before; streams wait for each other by
 * events alone; memory is known by its kind; while a thread captures, calls that the real one forbids spoil the graph.
 * Calls are counted and can be made to fail; a captured graph calls back when it is launched. For several threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kOk = 0, kInvalid = 1, kMemory = 2, kUnloading = 4, kOldDriver = 35, kNoDevice = 100, kOrdinal = 101, kHandle = 400,
       kForbidden = 900, kCapture = 901 };
enum { kToDevice = 1, kToHost = 2, kOnDevice = 3, kDefault = 4 };
enum { kUnregistered = 0, kHost = 1, kDevice = 2 };

#ifndef FAKE_RUNTIME
#define FAKE_RUNTIME 13000
#endif
#ifndef FAKE_DRIVER
#define FAKE_DRIVER 13000
#endif

static atomic_int live_device, live_host, live_streams, live_graphs, live_events;
static atomic_int fail_capture, devices = 1, capability = 87, driver = FAKE_DRIVER, multiprocessors = 8;
static _Thread_local int capturing, spoiled, current;
static _Thread_local intptr_t captured;
static atomic_size_t memory_limit = SIZE_MAX, memory_used;
static void (*_Atomic on_launch)(intptr_t graph);
static atomic_intptr_t next_graph = 0x1000;

/* The real one is shut down while the process ends, before objects that are older than it. */
static atomic_int ended;
static void end(void) { ended = 1; }
__attribute__((constructor)) static void start(void) { atexit(end); }

/* ---- Memory ---- */

typedef struct Block {
  struct Block* next;
  char* base;
  size_t size;
  int kind, device;
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Block* blocks;

static Block* block_of(const void* p) {
  for (Block* b = blocks; b; b = b->next)
    if ((const char*)p >= b->base && (const char*)p < b->base + b->size) return b;
  return NULL;
}
static int kind_of(const void* p) {
  pthread_mutex_lock(&lock);
  const Block* const found = block_of(p);
  const int kind = found ? found->kind : kUnregistered;
  pthread_mutex_unlock(&lock);
  return kind;
}
static void* add(size_t size, int kind) {
  Block* const b = malloc(sizeof *b);
  *b = (Block){NULL, malloc(size), size, kind, current};
  memset(b->base, 0xFF, size); /* NaN where nothing was written */
  pthread_mutex_lock(&lock);
  b->next = blocks;
  blocks = b;
  pthread_mutex_unlock(&lock);
  return b->base;
}
/* The size of the block that began here; 0: there was none. */
static size_t drop(void* p, int kind) {
  pthread_mutex_lock(&lock);
  Block** at = &blocks;
  while (*at && ((*at)->base != p || (*at)->kind != kind)) at = &(*at)->next;
  Block* const b = *at;
  if (b) *at = b->next;
  pthread_mutex_unlock(&lock);
  if (!b) return 0;
  const size_t size = b->size;
  memset(b->base, 0xFF, size);
  free(b->base);
  free(b);
  return size;
}

/* ---- Streams: lists of what is still to happen ---- */

typedef struct Stream Stream;
typedef struct Work {
  struct Work* next;
  uint64_t number;
  void* to;         /* a copy */
  const void* from;
  void* staged;     /* of memory that is not pinned, as it was when the copy was asked for */
  size_t bytes;
  Stream* after;    /* waits for another stream */
  uint64_t until;
  void (*call)(intptr_t); /* or something else */
  intptr_t argument;
} Work;
struct Stream {
  Stream* next;
  Work *first, *last;
  uint64_t issued, done;
  int running, dead, device;
};
static Stream legacy, per_thread; /* handles 0 or 1, and 2 */
static Stream* streams;

typedef struct {
  Stream* stream; /* NULL: never recorded */
  uint64_t number;
  int device;
} Event;

static Stream* stream_of(void* handle) {
  if ((uintptr_t)handle <= 1) return &legacy;
  if ((uintptr_t)handle == 2) return &per_thread;
  Stream* found = NULL;
  pthread_mutex_lock(&lock);
  for (Stream* s = streams; s; s = s->next)
    if (s == handle && !s->dead) found = s;
  pthread_mutex_unlock(&lock);
  return found;
}

static void put(Stream* s, Work work) {
  Work* const one = malloc(sizeof *one);
  *one = work;
  pthread_mutex_lock(&lock);
  one->number = ++s->issued;
  if (s->last) s->last->next = one;
  else s->first = one;
  s->last = one;
  pthread_mutex_unlock(&lock);
}

static void drain(Stream* s, uint64_t until) {
  pthread_mutex_lock(&lock);
  while (s->done < until) {
    if (s->running) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    Work* const one = s->first;
    s->first = one->next;
    if (!s->first) s->last = NULL;
    s->running = 1;
    pthread_mutex_unlock(&lock);
    if (one->after) drain(one->after, one->until);
    else if (one->call) one->call(one->argument);
    else memcpy(one->to, one->staged ? one->staged : one->from, one->bytes);
    free(one->staged);
    pthread_mutex_lock(&lock);
    s->running = 0;
    s->done = one->number;
    free(one);
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
}
static uint64_t issued(Stream* s) {
  pthread_mutex_lock(&lock);
  const uint64_t number = s->issued;
  pthread_mutex_unlock(&lock);
  return number;
}
static void drain_all(void) {
  drain(&legacy, issued(&legacy));
  drain(&per_thread, issued(&per_thread));
  pthread_mutex_lock(&lock);
  Stream* s = streams;
  pthread_mutex_unlock(&lock);
  for (; s; s = s->next) drain(s, issued(s));
}

/* What the real one forbids while the calling thread captures. */
static int forbidden(void) {
  if (capturing) spoiled = 1;
  return capturing;
}

/* ---- What tests turn and read ---- */

int fake_count(int what) {
  switch (what) {
    case 0: return live_device;
    case 1: return live_host;
    case 2: return live_streams;
    case 3: return live_graphs;
    default: return live_events;
  }
}
int fake_capturing(void) { return capturing; }
intptr_t fake_captured(void) { return captured; }
void fake_set(int new_devices, int new_capability, int new_fail_capture, size_t limit) {
  devices = new_devices;
  capability = new_capability;
  fail_capture = new_fail_capture;
  memory_limit = limit;
}
void fake_driver(int version) { driver = version; }
void fake_multiprocessors(int count) { multiprocessors = count; }
void fake_on_launch(void (*callback)(intptr_t)) { on_launch = callback; }
/* Work of somebody else's on a stream; what TensorRT's stand-ins compute. */
int fake_enqueue(void* stream, void (*call)(intptr_t), intptr_t argument) {
  Stream* const s = stream_of(stream);
  if (!s) return kHandle;
  put(s, (Work){.call = call, .argument = argument});
  return kOk;
}

/* ---- The CUDA runtime ---- */

static int without_driver(void) { return FAKE_RUNTIME / 1000 > driver / 1000; }

int cudaGetDeviceCount(int* n) { *n = devices; return without_driver() ? kOldDriver : devices ? kOk : kNoDevice; }
int cudaGetDevice(int* d) { *d = current; return ended ? kUnloading : kOk; }
int cudaSetDevice(int d) { return ended ? kUnloading : d >= 0 && d < devices ? (current = d, kOk) : kOrdinal; }
int cudaDeviceGetAttribute(int* v, int what, int d) {
  (void)d;
  *v = what == 75 ? capability / 10 : what == 76 ? capability % 10 : what == 16 ? multiprocessors : 0;
  return kOk;
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total) { *free_bytes = 1u << 30; *total = 1u << 31; return kOk; }
int cudaDriverGetVersion(int* v) { *v = driver; return kOk; }
int cudaRuntimeGetVersion(int* v) { *v = FAKE_RUNTIME; return kOk; }

int cudaMalloc(void** p, size_t n) {
  if (forbidden()) return kForbidden;
  if (memory_used + n > memory_limit) return kMemory;
  memory_used += n;
  live_device++;
  *p = add(n, kDevice);
  return kOk;
}
int cudaFree(void* p) {
  if (forbidden()) return kForbidden;
  if (!p) return kOk;
  drain_all(); /* it waits for the GPU */
  const size_t size = drop(p, kDevice);
  if (!size) return kInvalid;
  memory_used -= size;
  live_device--;
  return kOk;
}
int cudaHostAlloc(void** p, size_t n, unsigned flags) {
  (void)flags;
  if (forbidden()) return kForbidden;
  *p = add(n, kHost);
  live_host++;
  return kOk;
}
int cudaFreeHost(void* p) {
  if (forbidden()) return kForbidden;
  drain_all();
  if (!drop(p, kHost)) return kInvalid;
  live_host--;
  return kOk;
}
struct Attributes {
  int kind, device;
  void *on_device, *on_host;
};
int cudaPointerGetAttributes(struct Attributes* found, const void* p) {
  pthread_mutex_lock(&lock);
  const Block* const b = block_of(p);
  *found = (struct Attributes){b ? b->kind : kUnregistered, b ? b->device : -1, b ? (void*)p : NULL, NULL};
  pthread_mutex_unlock(&lock);
  return kOk;
}
int cudaMemcpyAsync(void* to, const void* from, size_t n, int kind, void* stream) {
  Stream* const s = stream_of(stream);
  if (!s) return kHandle;
  const int onto = kind_of(to), of = kind_of(from);
  const int fits = kind == kToDevice  ? onto == kDevice && of != kDevice
                   : kind == kToHost  ? onto != kDevice && of == kDevice
                   : kind == kOnDevice ? onto == kDevice && of == kDevice
                                       : kind == kDefault;
  if (n > 0 && !fits) return kInvalid;
  if (forbidden()) return kCapture; /* the real one records it; nothing here does */
  Work work = {.to = to, .from = from, .bytes = n};
  if (of == kUnregistered && n > 0) {
    work.staged = malloc(n);
    memcpy(work.staged, from, n);
  }
  put(s, work);
  return kOk;
}

int cudaStreamCreateWithFlags(void** s, unsigned flags) {
  if (flags != 1) return kInvalid;
  Stream* const made = calloc(1, sizeof *made);
  made->device = current;
  pthread_mutex_lock(&lock);
  made->next = streams;
  streams = made;
  pthread_mutex_unlock(&lock);
  *s = made;
  live_streams++;
  return kOk;
}
int cudaStreamDestroy(void* handle) {
  Stream* const s = stream_of(handle);
  if (!s) return kHandle;
  drain(s, issued(s));
  pthread_mutex_lock(&lock);
  s->dead = 1; /* kept, so that using it again is found */
  pthread_mutex_unlock(&lock);
  live_streams--;
  return kOk;
}
int cudaStreamSynchronize(void* handle) {
  Stream* const s = stream_of(handle);
  if (!s) return kHandle;
  if (forbidden()) return kForbidden;
  drain(s, issued(s));
  return kOk;
}
int cudaDeviceSynchronize(void) {
  if (forbidden()) return kForbidden;
  drain_all();
  return kOk;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  if (flags != 2) return kInvalid; /* without timing */
  Event* const made = calloc(1, sizeof *made);
  made->device = current;
  *event = made;
  live_events++;
  return kOk;
}
int cudaEventRecord(void* event, void* handle) {
  Stream* const s = stream_of(handle);
  Event* const e = event;
  if (!s || ((s != &legacy && s != &per_thread) && s->device != e->device)) return kHandle;
  e->stream = s;
  e->number = issued(s);
  return kOk;
}
int cudaStreamWaitEvent(void* handle, void* event, unsigned flags) {
  (void)flags;
  Stream* const s = stream_of(handle);
  const Event* const e = event;
  if (!s) return kHandle;
  if (e->stream && e->stream != s) put(s, (Work){.after = e->stream, .until = e->number});
  return kOk;
}
int cudaEventDestroy(void* event) { free(event); live_events--; return kOk; }

int cudaStreamBeginCapture(void* handle, int mode) {
  if (mode != 1 || !stream_of(handle)) return kInvalid;
  capturing = 1;
  spoiled = 0;
  captured = next_graph += 16;
  return kOk;
}
int cudaStreamEndCapture(void* handle, void** graph) {
  (void)handle;
  capturing = 0;
  const int failed = fail_capture || spoiled;
  *graph = failed ? NULL : (void*)captured;
  return failed ? kCapture : kOk;
}
int cudaGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) { (void)flags; *exec = graph; live_graphs++; return kOk; }
static void launch(intptr_t graph) {
  void (*const call)(intptr_t) = on_launch;
  if (call) call(graph);
}
int cudaGraphLaunch(void* exec, void* stream) { return fake_enqueue(stream, launch, (intptr_t)exec); }
int cudaGraphExecDestroy(void* exec) { (void)exec; live_graphs--; return kOk; }
int cudaGraphDestroy(void* graph) { (void)graph; return kOk; }

int cudaGetLastError(void) { return kOk; }
const char* cudaGetErrorString(int code) {
  switch (code) {
    case kOk: return "no error";
    case kMemory: return "out of memory";
    case kOldDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case kHandle: return "invalid resource handle";
    case kForbidden:
    case kCapture: return "operation not permitted when stream is capturing";
    default: return "invalid argument";
  }
}
