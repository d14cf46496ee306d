// Many calls, many threads, wrong calls; for every build (sanitizers, ARM):
//   capsedge_stress ONNXRUNTIME MODEL threads|calls|allocations|misuse|soak [COUNT]
// Prints what it did; exit code 1 with a line for what went wrong.

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capsedge.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> ours{0}, theirs{0};
uintptr_t library_start = 0, library_end = 0;

void find_library() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, "libcapsedge.so") == nullptr) return 0;
        library_start = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD)
            library_end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        return 1;
      },
      nullptr);
}

[[maybe_unused]] void note(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  (address >= library_start && address < library_end ? ours : theirs).fetch_add(1, std::memory_order_relaxed);
}

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "failed: %s\n", message.c_str());
  std::exit(1);
}

void check(capsedge_status* status) {
  if (status == nullptr) return;
  fail(capsedge_status_message(status));
}

// The call must fail with this code.
void refused(capsedge_status* status, capsedge_code code, const char* what) {
  if (capsedge_status_code(status) != code || *capsedge_status_message(status) == '\0')
    fail(std::string(what) + ": code " + std::to_string(capsedge_status_code(status)) + ", " + capsedge_status_message(status));
  capsedge_status_release(status);
}

const char* runtime_path = nullptr;
const char* model_path = nullptr;

capsedge_session* open_session(capsedge_ops ops) {
  capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
  options.threads = 1;
  options.ops = ops;
  options.onnxruntime = runtime_path;
  if (std::getenv("CAPSEDGE_STRESS_GPU")) options.provider = CAPSEDGE_PROVIDER_CUDA;
  capsedge_session* session = nullptr;
  check(capsedge_open(model_path, &options, &session));
  return session;
}

// A run of a fixed batch with all outputs, over memory of its own.
class Caller {
 public:
  Caller(capsedge_session* session, int seed) : session_(session) {
    capsedge_description d = CAPSEDGE_DESCRIPTION_INIT;
    check(capsedge_describe(session, &d));
    capsedge_port port = CAPSEDGE_PORT_INIT;
    check(capsedge_input(session, 0, &port));
    size_t count = 1;
    input_.rank = port.rank;
    input_.type = port.type;
    for (int i = 0; i < port.rank; ++i) count *= static_cast<size_t>(input_.shape[i] = port.shape[i] < 0 ? 2 : port.shape[i]);
    values_.resize(count);
    unsigned state = static_cast<unsigned>(seed) * 2654435761u + 1;
    for (float& v : values_) v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f;
    input_.data = values_.data();
    input_.bytes = count * sizeof(float);
    for (size_t i = 0; i < d.output_count; ++i) rooms_.emplace_back(1 << 16);
    outputs_.resize(d.output_count);
    for (unsigned char& pixel : pixels_) pixel = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24);
    check(capsedge_prediction_create(&prediction_));
  }
  ~Caller() { check(capsedge_prediction_close(prediction_)); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void run() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i] = capsedge_tensor{};
      outputs_[i].data = rooms_[i].data();
      outputs_[i].bytes = rooms_[i].size();
    }
    check(capsedge_run(session_, &input_, 1, outputs_.data(), outputs_.size()));
  }

  void predict() {
    capsedge_image images[2] = {};
    for (int i = 0; i < 2; ++i) {
      images[i].pixels = pixels_ + i;
      images[i].type = CAPSEDGE_UINT8;
      images[i].height = 23 + i;
      images[i].width = 31;
      images[i].channels = 3;
    }
    check(capsedge_predict(session_, images, 2, nullptr, prediction_));
  }

  std::string bytes() const {
    std::string all;
    for (const capsedge_tensor& t : outputs_) all.append(static_cast<const char*>(t.data), t.bytes);
    capsedge_result result = CAPSEDGE_RESULT_INIT;
    check(capsedge_prediction_result(prediction_, 1, &result));
    all.append(reinterpret_cast<const char*>(result.scores), sizeof(double) * static_cast<size_t>(result.class_count));
    return all + result.labels[0].name;
  }

 private:
  capsedge_session* session_;
  capsedge_tensor input_{};
  std::vector<float> values_;
  std::vector<std::vector<unsigned char>> rooms_;
  std::vector<capsedge_tensor> outputs_;
  unsigned char pixels_[24 * 31 * 3 + 1];
  capsedge_prediction* prediction_ = nullptr;
};

// Eight threads over one session, then each with its own: what one gives alone.
void threads(int count) {
  capsedge_session* const shared = open_session(CAPSEDGE_OPS_AUTO);
  std::vector<std::string> alone;
  for (int k = 0; k < 8; ++k) {
    Caller caller(shared, k);
    caller.run();
    caller.predict();
    alone.push_back(caller.bytes());
  }
  for (const bool own : {false, true}) {
    std::vector<std::thread> all;
    for (int k = 0; k < 8; ++k)
      all.emplace_back([&, k] {
        capsedge_session* const session = own ? open_session(CAPSEDGE_OPS_AUTO) : shared;
        {
          Caller caller(session, k);
          for (int i = 0; i < count; ++i) {
            caller.run();
            caller.predict();
            if (caller.bytes() != alone[static_cast<size_t>(k)]) fail("thread " + std::to_string(k) + " got other numbers");
          }
        }
        if (own) check(capsedge_close(session));
      });
    for (std::thread& thread : all) thread.join();
  }
  capsedge_counters counters = CAPSEDGE_COUNTERS_INIT;
  check(capsedge_read_counters(shared, &counters));
  if (counters.runs != 2u * (8 + 8 * static_cast<unsigned>(count)) || counters.failed != 0) fail("the counters are wrong");
  check(capsedge_close(shared));
  std::printf("threads: 8 threads, %d rounds, one session and one each\n", count);
}

// Not of /proc/self/statm, whose counters Linux keeps per processor and adds up with an error of up to MiBs.
long resident_kib() {
  std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r");
  long resident = -1;
  for (char line[256]; file != nullptr && resident < 0 && std::fgets(line, sizeof line, file) != nullptr;)
    std::sscanf(line, "Rss: %ld kB", &resident);
  if (resident < 0) fail("cannot read /proc/self/smaps_rollup");
  std::fclose(file);
  return resident;
}

void calls(int count) {
  capsedge_session* const session = open_session(CAPSEDGE_OPS_AUTO);
  long before = 0;
  {
    Caller caller(session, 1);
    for (int i = 0; i < count; ++i) {
      if (i == count / 10) before = resident_kib();
      if (i % 2) caller.run();
      else caller.predict();
    }
  }
  const long grown = resident_kib() - before;
  check(capsedge_close(session));
  std::printf("calls: %d, grown by %ld KiB after the first tenth\n", count, grown);
  if (grown > 256) fail("memory grows");
}

void allocations(int count) {
#if COUNTS_ALLOCATIONS
  for (const capsedge_ops ops : {CAPSEDGE_OPS_PORTABLE, CAPSEDGE_OPS_FUSED}) {
    capsedge_session* const session = open_session(ops);
    {
      Caller caller(session, 1);
      for (const bool predict : {false, true}) {
        const auto once = [&] { predict ? caller.predict() : caller.run(); };
        for (int i = 0; i < 20; ++i) once();
        ours = theirs = 0;
        counting = true;
        for (int i = 0; i < count; ++i) once();
        counting = false;
        std::printf("allocations: %s %s: %.2f a call in libcapsedge, %.2f elsewhere\n", predict ? "predict" : "run",
                    ops == CAPSEDGE_OPS_FUSED ? "fused" : "portable", static_cast<double>(ours) / count,
                    static_cast<double>(theirs) / count);
      }
    }
    check(capsedge_close(session));
  }
#else
  (void)count;
  std::printf("allocations: not counted in this build\n");
#endif
}

void misuse(int count) {
  refused(capsedge_open("/nonexistent/model.onnx", nullptr, nullptr), CAPSEDGE_USAGE, "no place for the session");
  capsedge_session* nothing = nullptr;
  refused(capsedge_open(nullptr, nullptr, &nothing), CAPSEDGE_USAGE, "null path");
  refused(capsedge_open("/nonexistent/model.onnx", nullptr, &nothing), CAPSEDGE_USAGE, "missing file");
  refused(capsedge_open("/", nullptr, &nothing), CAPSEDGE_USAGE, "a folder");
  refused(capsedge_close(nullptr), CAPSEDGE_USAGE, "close null");
  // Closing while others run: each call succeeds or is refused, and nothing else.
  for (int round = 0; round < count; ++round) {
    capsedge_session* const session = open_session(CAPSEDGE_OPS_AUTO);
    std::vector<std::thread> all;
    std::atomic<int> closed{0}, refusals{0};
    for (int k = 0; k < 4; ++k)
      all.emplace_back([&, k] {
        float input[28 * 28] = {}, room[1 << 12];
        for (int i = 0; i < 50; ++i) {
          capsedge_tensor in{}, out{};
          in.data = input, in.bytes = sizeof input, in.type = CAPSEDGE_FLOAT32, in.rank = 4;
          in.shape[0] = in.shape[1] = 1, in.shape[2] = in.shape[3] = 28;
          out.data = room, out.bytes = sizeof room;
          capsedge_status* const status = capsedge_run(session, &in, 1, &out, 1);
          if (status == nullptr) continue;
          ++refusals;
          refused(status, CAPSEDGE_USAGE, "run while closing");
        }
        if (k < 2) {  // two race to close
          capsedge_status* const status = capsedge_close(session);
          if (status == nullptr) ++closed;
          else refused(status, CAPSEDGE_USAGE, "closed twice");
        }
      });
    for (std::thread& thread : all) thread.join();
    if (closed != 1) fail("closed " + std::to_string(closed.load()) + " times");
    refused(capsedge_close(session), CAPSEDGE_USAGE, "close again");
    capsedge_description d = CAPSEDGE_DESCRIPTION_INIT;
    refused(capsedge_describe(session, &d), CAPSEDGE_USAGE, "describe a closed session");
    refused(capsedge_prediction_close(reinterpret_cast<capsedge_prediction*>(session)), CAPSEDGE_USAGE, "another kind");
  }
  std::printf("misuse: %d rounds\n", count);
}

// Entries of a folder, with "." and "..".
long entries(const char* folder) {
  DIR* const opened = opendir(folder);
  if (opened == nullptr) fail(std::string("cannot read ") + folder);
  long count = 0;
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

// 64 threads that open sessions, run them and close them, for so many seconds. Looks between rounds, when all are
// closed: from a fifth of the time on, memory stays within 1 MiB, descriptors and threads are constant.
// Each of 64 threads caches blocks that it freed, and each such block pins its page: MiBs that come and go. The caches
// are switched off before a program starts or never, so it starts again.
void without_caches(char** argv) {
  constexpr const char* kName = "GLIBC_TUNABLES";
  if (std::getenv(kName) != nullptr) return;
  setenv(kName, "glibc.malloc.tcache_count=0", 1);
  execv("/proc/self/exe", argv);
  fail("cannot start again");
}

void soak(int seconds) {
  constexpr int kThreads = 64;
  // What the C library keeps for each thread goes up and down by tens of MiB; only what is held counts here. See
  // without_caches for the rest.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 64 * 1024);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::mutex mutex;
  std::condition_variable changed;
  int round = 0, waiting = 0;
  bool over = false;
  std::vector<std::thread> all;
  for (int k = 0; k < kThreads; ++k)
    all.emplace_back([&, k] {
      for (int mine = 0;;) {
        {
          std::unique_lock<std::mutex> lock(mutex);
          ++waiting;
          changed.notify_all();
          changed.wait(lock, [&] { return round > mine || over; });
          if (over) return;
          mine = round;
        }
        capsedge_session* const session = open_session(k % 2 ? CAPSEDGE_OPS_AUTO : CAPSEDGE_OPS_PORTABLE);
        {
          Caller caller(session, k);
          caller.run();
          caller.predict();
        }
        check(capsedge_close(session));
      }
    });
  long least = 0, most = 0, descriptors = 0, tasks = 0;
  double said = -60;
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return waiting == kThreads; });
    malloc_trim(0);
    const long kib = resident_kib(), files = entries("/proc/self/fd"), here = entries("/proc/self/task");
    if (elapsed() - said >= 60) {
      said = elapsed();
      std::printf("soak: %.0f s, %d rounds, %ld KiB, %ld descriptors, %ld threads\n", said, round, kib, files - 3, here - 2);
      std::fflush(stdout);
    }
    if (elapsed() > seconds / 5.0) {
      if (most == 0) least = most = kib, descriptors = files, tasks = here;
      least = std::min(least, kib), most = std::max(most, kib);
      if (files != descriptors || here != tasks) fail("descriptors or threads change");
    }
    if (elapsed() > seconds) break;
    waiting = 0;
    ++round;
    changed.notify_all();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    over = true;
    changed.notify_all();
  }
  for (std::thread& thread : all) thread.join();
  std::printf("soak: %d threads, %d rounds, %ld KiB between the least and the most after a fifth\n", kThreads, round, most - least);
  if (most - least > 1024) fail("memory changes");
}

}  // namespace

#if COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  note(__builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  note(__builtin_return_address(0));
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  note(__builtin_return_address(0));
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  note(__builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  note(__builtin_return_address(0));
  *memory = __libc_memalign(alignment, size);
  return *memory ? 0 : 12;
}
}
#endif

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: capsedge_stress ONNXRUNTIME MODEL threads|calls|allocations|misuse|soak [COUNT]\n");
    return 2;
  }
  runtime_path = argv[1];
  model_path = argv[2];
  find_library();
  const std::string what = argv[3];
  const int count = argc > 4 ? std::atoi(argv[4]) : 0;
  if (what == "threads") threads(count ? count : 50);
  else if (what == "calls") calls(count ? count : 100000);
  else if (what == "allocations") allocations(count ? count : 100);
  else if (what == "misuse") misuse(count ? count : 5);
  else if (what == "soak") without_caches(argv), soak(count ? count : 600);
  else return 2;
  return 0;
}
