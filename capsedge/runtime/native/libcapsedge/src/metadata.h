// The metadata of a model: the capsedge.* properties of its file (capsedge/runtime/metadata/metadata.py).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "failure.h"
#include "typical_input.h"
#include "preprocessing.h"

namespace capsedge::libcapsedge {

// Which outputs hold scores, poses or values, if they are not named lengths, logits and poses.
struct DeclaredOutputs {
  std::string scores, kind, poses;  // of a classification; kind: of spec::ScoreKind
  std::vector<std::string> values;  // of a regression
  std::vector<std::string> names, units;  // of its values
};

struct Metadata {
  std::string architecture, routing, precision;
  spec::Task task = spec::Task::kSingleLabel;
  int32_t iterations = 0;
  std::vector<std::string> class_names;
  std::optional<Preprocessing> preprocessing;
  std::optional<DeclaredOutputs> outputs;
  std::optional<TypicalInput> typical_input;
  bool cascade = false;  // whether the output `escalated` states which network decided

  bool regression() const { return task == spec::Task::kRegression; }
  bool segmentation() const { return task == spec::Task::kSegmentation; }
};

// Nothing where the file has no properties of ours. Throws Failure (CAPSEDGE_ARTEFACT) where they are damaged or of
// another schema.
std::optional<Metadata> read_metadata(const std::map<std::string, std::string>& properties);

// The values that an input may hold, and what its rows mean to each other.
struct InputBounds {
  int64_t entries = -1;          // of the table that its integers index; -1 if it indexes none
  std::vector<int64_t> longest;  // of each axis; 0 if only the shape limits it. Empty if no axis is limited
  bool independent = false;      // whether the result for a row does not depend on the other rows

  bool stated() const { return entries >= 0 || !longest.empty() || independent; }
};

// The bounds of inputs by name, as the property `capsedge_inputs` states them: as capsedge/runtime/metadata/table_indices.py.
// Throws Failure (CAPSEDGE_ARTEFACT) where it is damaged.
std::map<std::string, InputBounds> read_input_bounds(const std::map<std::string, std::string>& properties);
// The error for a property that is damaged, or does not fit the graph.
Failure unreadable_inputs(const std::string& why);

}  // namespace capsedge::libcapsedge
