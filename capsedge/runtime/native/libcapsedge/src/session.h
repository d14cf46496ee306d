// A loaded model: the backend, the metadata, and the checks of the caller's arguments.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outputs.h"
#include "backend.h"
#include "decoder.h"
#include "metadata.h"

namespace capsedge::libcapsedge {

// An opened file.
struct Model {
  std::map<std::string, std::string> properties;
  std::optional<Metadata> metadata;
  bool fused = false;
  bool expanded_routing = false;  // whether there is routing in standard operators or bodies besides the fused ones
  std::string no_kernel_reason;   // why capsule operators run as bodies on a GPU; empty if none does, or all are to
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Decoder> decoder;  // of a file that has one
  std::vector<std::string> outputs;  // all of the file, including those that the backend omits
};

struct Counters {
  std::atomic<uint64_t> runs{0}, images{0}, failed{0}, prepare_ns{0}, run_ns{0}, longest_run_ns{0};
};

struct GpuStream {
  void* handle;  // cudaStream_t
};

class Session {
 public:
  // `name` is what errors call the model. Throws Failure (CAPSEDGE_ARTEFACT) where its metadata does not fit its graph.
  Session(std::string name, Model model);

  const std::string& name() const { return name_; }
  const Backend& backend() const { return *backend_; }
  const std::optional<Metadata>& metadata() const { return metadata_; }
  const char* ops() const { return !fused_ ? "portable" : expanded_routing_ ? "mixed" : "fused"; }
  const char* no_kernel_reason() const { return no_kernel_reason_.empty() ? nullptr : no_kernel_reason_.c_str(); }
  const OutputRoles& roles() const { return roles_; }
  const std::string* property(const std::string& key) const;
  int64_t batch() const;  // -1: free
  std::shared_ptr<const std::vector<std::string>> class_names() const { return class_names_; }
  const Preprocessing& preprocessing() const;  // throws where the file has none
  const Decoder& decoder() const;              // throws where the file has none
  Counters& counters() const { return counters_; }

  // Checks the inputs and runs. Outputs get their types and shapes. With a stream: on GPU memory, whose values are not
  // checked, in the order of the stream.
  void run(const capsedge_tensor* inputs, size_t input_count, capsedge_tensor* outputs, size_t output_count,
           const GpuStream* stream = nullptr) const;
  void warm_up(int64_t batch, int32_t runs) const;

  // Checks nothing except that there are `images` rows.
  void run_values(const Value* inputs, size_t input_count, Value* outputs, size_t output_count, int64_t images,
                  const GpuStream* stream = nullptr) const;

  // Sets type, rank, shape and bytes of an output for a batch; false if the file leaves sizes other than the batch open.
  bool shape_for(int64_t batch, Value& output) const;

 private:
  // The input that determines the batch: the first one whose first dimension is free, or else the first.
  size_t batch_input() const;
  void check_sizes() const;
  void check_batches(const Value* given, size_t count) const;
  void check_metadata(const std::vector<std::string>& output_names) const;
  const std::string name_;
  const std::map<std::string, std::string> properties_;
  const std::optional<Metadata> metadata_;
  const bool fused_;
  const bool expanded_routing_;
  const std::string no_kernel_reason_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Decoder> decoder_;
  std::vector<InputBounds> bounds_;  // of each input
  OutputRoles roles_;
  std::shared_ptr<const std::vector<std::string>> class_names_;
  mutable Counters counters_;
};

}  // namespace capsedge::libcapsedge
