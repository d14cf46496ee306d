// Classify what a camera sees, through Video4Linux, until Ctrl-C; or COUNT frames:
//   camera MODEL [/dev/video0 [COUNT]]
// Of the frames that are ready, the newest is taken. One line per frame: seconds, class or values, milliseconds.
#include <fcntl.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "capsedge.hpp"

namespace {

volatile std::sig_atomic_t stopped = 0;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A camera that writes YUYV or NV12 into buffers that it shares with us.
class Camera {
 public:
  Camera() = default;
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;
  ~Camera() {
    for (const Mapped& buffer : buffers_) munmap(buffer.start, buffer.bytes);
    if (handle_ >= 0) close(handle_);
  }

  // What went wrong; empty if nothing did.
  std::string open(const char* device) {
    handle_ = ::open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (handle_ < 0) return reason("cannot be opened");
    v4l2_capability can{};
    if (!call(VIDIOC_QUERYCAP, &can)) return "is not a camera";
    const uint32_t caps = can.capabilities & V4L2_CAP_DEVICE_CAPS ? can.device_caps : can.capabilities;
    if (!(caps & V4L2_CAP_VIDEO_CAPTURE) || !(caps & V4L2_CAP_STREAMING)) return "is not a camera that streams";
    std::string wrong = choose_format();
    return wrong.empty() ? start() : wrong;
  }

  // The newest frame, which is valid until the next call; waits up to five seconds. What went wrong, or empty.
  std::string newest(capsedge_frame* frame) {
    if (held_ >= 0) give_back(static_cast<uint32_t>(held_));
    held_ = -1;
    pollfd ready{handle_, POLLIN, 0};
    const int count = poll(&ready, 1, 5000);
    if (count < 0 && errno == EINTR) return "";
    if (count <= 0) return "gives no picture";
    while (true) {
      v4l2_buffer buffer = described(0);
      if (!call(VIDIOC_DQBUF, &buffer)) {
        if (errno == EAGAIN) break;  // no further frame is ready
        return reason("gives no more frames");
      }
      if (held_ >= 0) give_back(static_cast<uint32_t>(held_)), ++dropped_;
      held_ = static_cast<int>(buffer.index);
    }
    if (held_ < 0) return "";
    *frame = frame_;
    const auto* pixels = static_cast<const uint8_t*>(buffers_[static_cast<size_t>(held_)].start);
    frame->planes[0] = pixels;
    if (frame->format == CAPSEDGE_FRAME_NV12) frame->planes[1] = pixels + frame->strides[0] * frame->height;
    return "";
  }

  bool holds() const { return held_ >= 0; }
  unsigned long dropped() const { return dropped_; }

 private:
  struct Mapped {
    void* start;
    size_t bytes;
  };

  std::string choose_format() {
    for (const auto& [pixels, format] : {std::pair(V4L2_PIX_FMT_YUYV, CAPSEDGE_FRAME_YUYV), std::pair(V4L2_PIX_FMT_NV12, CAPSEDGE_FRAME_NV12)}) {
      v4l2_format wanted{};
      wanted.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
      if (!call(VIDIOC_G_FMT, &wanted)) return reason("does not tell its format");
      wanted.fmt.pix.pixelformat = pixels;
      wanted.fmt.pix.field = V4L2_FIELD_NONE;
      if (!call(VIDIOC_S_FMT, &wanted)) {
        if (errno == EBUSY) return "is busy: another program uses it";
        continue;
      }
      const v4l2_pix_format& got = wanted.fmt.pix;
      if (got.pixelformat != pixels) continue;
      frame_ = capsedge::frame();
      frame_.format = format;
      // The rules of the kernel for what a driver leaves at its default, without the colour spaces that no camera has.
      const bool hd = got.ycbcr_enc == V4L2_YCBCR_ENC_709 || (got.ycbcr_enc == V4L2_YCBCR_ENC_DEFAULT && got.colorspace == V4L2_COLORSPACE_REC709);
      frame_.matrix = hd ? CAPSEDGE_MATRIX_BT709 : CAPSEDGE_MATRIX_BT601;
      const bool full = got.quantization == V4L2_QUANTIZATION_FULL_RANGE ||
                        (got.quantization == V4L2_QUANTIZATION_DEFAULT && got.colorspace == V4L2_COLORSPACE_JPEG);
      frame_.range = full ? CAPSEDGE_RANGE_FULL : CAPSEDGE_RANGE_LIMITED;
      frame_.height = static_cast<int32_t>(got.height);
      frame_.width = static_cast<int32_t>(got.width);
      frame_.strides[0] = got.bytesperline;
      frame_.strides[1] = format == CAPSEDGE_FRAME_NV12 ? got.bytesperline : 0;
      bytes_ = got.sizeimage;
      return "";
    }
    return "gives neither YUYV nor NV12";
  }

  std::string start() {
    v4l2_requestbuffers request{};
    request.count = 4;
    request.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    request.memory = V4L2_MEMORY_MMAP;
    if (!call(VIDIOC_REQBUFS, &request)) return reason("has no buffers");
    for (uint32_t index = 0; index < request.count; ++index) {
      v4l2_buffer buffer = described(index);
      if (!call(VIDIOC_QUERYBUF, &buffer)) return reason("has no buffers");
      if (buffer.length < bytes_) return "has buffers that are too small";
      void* const start = mmap(nullptr, buffer.length, PROT_READ | PROT_WRITE, MAP_SHARED, handle_, buffer.m.offset);
      if (start == MAP_FAILED) return reason("does not share its buffers");
      buffers_.push_back({start, buffer.length});
      give_back(index);
    }
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    return call(VIDIOC_STREAMON, &type) ? "" : reason("does not start");
  }

  static v4l2_buffer described(uint32_t index) {
    v4l2_buffer buffer{};
    buffer.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    buffer.memory = V4L2_MEMORY_MMAP;
    buffer.index = index;
    return buffer;
  }

  void give_back(uint32_t index) {
    v4l2_buffer buffer = described(index);
    call(VIDIOC_QBUF, &buffer);  // a camera that has gone says so at the next frame
  }

  bool call(unsigned long request, void* argument) {
    int answer;
    do answer = ioctl(handle_, request, argument);
    while (answer < 0 && errno == EINTR);
    return answer >= 0;
  }

  static std::string reason(const std::string& what) { return what + ": " + std::strerror(errno); }

  int handle_ = -1, held_ = -1;
  unsigned long dropped_ = 0;
  size_t bytes_ = 0;
  capsedge_frame frame_ = capsedge::frame();
  std::vector<Mapped> buffers_;
};

int complain(const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

std::string answer_text(const capsedge::Session& session, const capsedge::ImageResult& answer) {
  std::string text;
  char number[32];
  for (size_t k = 0; k < answer.values.size(); ++k) {
    const auto value = session.value_name(k);
    std::snprintf(number, sizeof number, " %.4g", answer.values[k]);
    text += (k > 0 ? ", " : "") + (value ? value->name : std::string("value")) + number;
  }
  for (const capsedge_label& label : answer.labels) {
    std::snprintf(number, sizeof number, " %.4f", label.score);
    text += (text.empty() ? "" : ", ") + std::string(label.name) + number;
  }
  return text.empty() ? "-" : text;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || count > 4) return complain("usage: camera MODEL [/dev/video0 [COUNT]]", CAPSEDGE_USAGE);
  const char* const device = count > 2 ? words[2] : "/dev/video0";
  long left = count > 3 ? std::atol(words[3]) : -1;
  auto session = capsedge::Session::open(words[1]);
  if (!session) return complain(session.error().message, session.error().code);
  auto prediction = capsedge::Prediction::create();
  if (!prediction) return complain(prediction.error().message, prediction.error().code);
  Camera camera;
  if (const std::string wrong = camera.open(device); !wrong.empty()) return complain(std::string(device) + " " + wrong, CAPSEDGE_ENVIRONMENT);

  struct sigaction stop {};
  stop.sa_handler = [](int) { stopped = 1; };
  sigaction(SIGINT, &stop, nullptr);
  const double start = now();
  unsigned long frames = 0;
  std::vector<uint8_t> pixels;
  while (!stopped && left != 0) {
    capsedge_frame frame = capsedge::frame();
    if (const std::string wrong = camera.newest(&frame); !wrong.empty()) return complain(std::string(device) + " " + wrong, CAPSEDGE_ENVIRONMENT);
    if (!camera.holds()) continue;
    const double arrived = now();
    if (auto done = capsedge::to_rgb(frame, pixels); !done) return complain(done.error().message, done.error().code);
    const capsedge_image image = capsedge::image(pixels.data(), frame.height, frame.width, 3);
    if (auto done = session->predict(capsedge::View<capsedge_image>(&image, 1), *prediction); !done) return complain(done.error().message, done.error().code);
    std::printf("%.3f  %s  %.1f ms\n", arrived - start, answer_text(*session, (*prediction)[0]).c_str(), 1000 * (now() - arrived));
    std::fflush(stdout);
    ++frames;
    if (left > 0) --left;
  }
  std::fprintf(stderr, "%lu frames, %.1f per second, %lu dropped\n", frames, static_cast<double>(frames) / (now() - start), camera.dropped());
  return stopped ? 130 : 0;
}
