// The outputs of a model that hold scores, poses and values (capsedge/runtime/session/output_roles.py).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "masks.h"
#include "metadata.h"

namespace capsedge::libcapsedge {

// An output that holds a part of the result.
struct RoleOutput {
  size_t port = 0;
  std::vector<int64_t> shape;  // of one image
  size_t values = 0;           // of one image
};

struct OutputRoles {
  bool possible = false;
  std::string why_not, fix;           // if they are not
  std::vector<RoleOutput> outputs;  // of a classification: scores, then poses if there are any; escalated of a cascade
  bool escalated = false;              // whether the last output is that
  bool regression = false;
  bool logits = false;
  bool several = false;        // labels per image
  const char* kind = nullptr;  // of scores: "length" or "probability"
  int32_t classes = 0, pose_size = 0;
  size_t values = 0;  // of a regression
  std::optional<ScoreMaps> maps;  // of a segmentation; its classes have no scores of an image
  std::vector<std::string> class_names;  // one per class; numbers if the file has no names
};

// Why metadata does not fit the graph; empty if it does. `names`: all outputs of the graph, also those not opened.
std::string misfit(const Metadata& metadata, const Backend& backend, const std::vector<std::string>& names);

// `metadata` is null for another tool's file.
OutputRoles output_roles(const Metadata* metadata, const Backend& backend);

}  // namespace capsedge::libcapsedge
