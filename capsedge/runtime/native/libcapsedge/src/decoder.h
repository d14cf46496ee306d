// The decoder of a loaded file on its own: from poses of class capsules to pictures (capsedge/runtime/session/decoder.py).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "backend.h"
#include "generated/metadata.h"

namespace capsedge::libcapsedge {

using spec::kReconstruction;

// Its input and output.
struct DecoderSizes {
  int64_t classes = 0, pose = 0, channels = 0, height = 0, width = 0;

  size_t poses() const { return static_cast<size_t>(classes * pose); }
  size_t picture() const { return static_cast<size_t>(channels * height * width); }
};

// Opened on first use; any number of threads may use it at once.
class Decoder {
 public:
  using Open = std::function<std::unique_ptr<Backend>(std::string_view)>;

  // `model` is the file, `name` what errors call it, `poses` and `pictures` are its outputs, `open` loads a part of it.
  Decoder(std::string_view model, std::string name, const Port& poses, const Port& pictures, Open open);

  // Throws Failure (CAPSEDGE_USAGE) if the pictures cannot be computed from poses alone.
  const DecoderSizes& sizes() const;

  // As capsedge_decode. Throws Failure (CAPSEDGE_USAGE) for an invalid pose or class, or if the buffer is too small.
  void decode(const float* poses, const int32_t* classes, size_t count, float* pictures, size_t room) const;

 private:
  void run(const float* poses, size_t count, float* pictures) const;
  const Backend& backend() const;

  const std::string name_;
  const Open open_;
  DecoderSizes sizes_;
  std::string part_, refused_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Backend> backend_;
};

}  // namespace capsedge::libcapsedge
