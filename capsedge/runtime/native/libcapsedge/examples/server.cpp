// A threaded server: one session, several workers, each with its own prediction.
//   server MODEL [WORKERS]
// Listens on a free port of this machine and prints it. A request is a line "HEIGHT WIDTH CHANNELS" followed by the
// pixels, one byte each; the answer is a line "CLASS SCORE", or "error: ...". A connection may send many requests. The
// server ends when its standard input does.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capsedge.hpp"

namespace {

// Connections waiting for a worker.
class Queue {
 public:
  void put(int connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      close(connection);
      return;
    }
    waiting_.push_back(connection);
    ready_.notify_one();
  }
  // Returns -1 if there will be no more.
  int take() {
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return -1;
    const int connection = waiting_.front();
    waiting_.pop_front();
    served_.insert(connection);
    return connection;
  }
  void done(int connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    served_.erase(connection);
    close(connection);
  }
  // Wakes the workers, including those that wait for a client.
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (const int connection : served_) shutdown(connection, SHUT_RDWR);
    ready_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<int> waiting_;
  std::set<int> served_;
  bool closed_ = false;
};

bool receive(int connection, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(connection, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool receive_line(int connection, std::string& line) {
  line.clear();
  for (char c; receive(connection, &c, 1);) {
    if (c == '\n') return true;
    if (line.size() >= 100) return false;
    line += c;
  }
  return false;
}

bool reply(int connection, const std::string& line) {
  return send(connection, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
}

void serve(const capsedge::Session& session, capsedge::Prediction& prediction, int connection) {
  std::string line;
  std::vector<uint8_t> pixels;
  while (receive_line(connection, line)) {
    int height = 0, width = 0, channels = 0;
    if (std::sscanf(line.c_str(), "%d %d %d", &height, &width, &channels) != 3 || height < 1 || height > 4096 || width < 1 ||
        width > 4096 || channels < 1 || channels > 4) {
      reply(connection, "error: wanted HEIGHT WIDTH CHANNELS, up to 4096, 4096 and 4\n");
      return;
    }
    pixels.resize(static_cast<size_t>(height) * static_cast<size_t>(width) * static_cast<size_t>(channels));
    if (!receive(connection, pixels.data(), pixels.size())) return;
    const capsedge_image image = capsedge::image(pixels.data(), height, width, channels);
    const auto done = session.predict(capsedge::View<capsedge_image>(&image, 1), prediction);
    if (!done) {
      reply(connection, "error: " + done.error().message.substr(0, done.error().message.find('\n')) + "\n");
      return;
    }
    const capsedge::ImageResult answer = prediction[0];
    char score[64];
    std::snprintf(score, sizeof score, " %.4f", answer.labels.empty() ? 0.0 : answer.labels[0].score);
    std::string line = (answer.labels.empty() ? "-" : answer.labels[0].name) + std::string(score);
    if (answer.atypical) line += std::string(", nothing to see: ") + answer.atypical;
    if (!reply(connection, line + "\n")) return;
  }
}

int complain(const capsedge::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message.c_str());
  return error.code;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return std::fprintf(stderr, "usage: server MODEL [WORKERS]\n"), CAPSEDGE_USAGE;
  const int workers = count > 2 ? std::atoi(words[2]) : 4;
  capsedge::OpenOptions options;
  options.threads = 1;  // the workers provide the parallelism
  auto session = capsedge::Session::open(words[1], options);
  if (!session) return complain(session.error());
  if (const auto warm = session->warm_up(); !warm) return complain(warm.error());

  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return std::perror("error: cannot listen"), CAPSEDGE_ENVIRONMENT;
  std::printf("port %d\n", ntohs(address.sin_port));
  std::fflush(stdout);

  Queue queue;
  std::vector<std::thread> threads;
  for (int k = 0; k < workers; ++k)
    threads.emplace_back([&] {
      auto prediction = capsedge::Prediction::create();
      for (int connection; (connection = queue.take()) >= 0; queue.done(connection))
        if (prediction) serve(*session, *prediction, connection);
    });
  threads.emplace_back([&] {
    for (int connection; (connection = accept(listener, nullptr, nullptr)) >= 0;) queue.put(connection);
  });
  while (std::getchar() != EOF) {
  }
  shutdown(listener, SHUT_RDWR);
  queue.end();
  for (std::thread& thread : threads) thread.join();
  close(listener);
  if (const auto counters = session->counters())
    std::fprintf(stderr, "%llu images, %.3f ms each\n", static_cast<unsigned long long>(counters->images),
                 counters->images ? 1e-6 * static_cast<double>(counters->run_ns) / static_cast<double>(counters->images) : 0.0);
  return 0;
}
