#include "passport.h"

#include <algorithm>
#include <vector>

#include "backend.h"
#include "failure.h"
#include "files.h"
#include "json.h"
#include "sha256.h"

namespace capsedge::embedding {

namespace {

constexpr int64_t kSchema = 1;
constexpr int64_t kMostBytes = 16 << 20, kMostPluginBytes = 1 << 30;

const Json& member(const Json& object, const char* name, Json::Kind kind) {
  const Json* const found = object.find(name);
  if (found == nullptr) throw JsonError(std::string("it has no '") + name + "'");
  if (found->kind != kind) throw JsonError(std::string("'") + name + "' is of another kind");
  return *found;
}

const std::string& text(const Json& object, const char* name) { return member(object, name, Json::kString).text; }

// The parts of "10.3.0.26"; words are left out.
std::vector<int64_t> numbers(const std::string& version) {
  std::vector<int64_t> parts(1, 0);
  for (const char c : version) {
    if (c == '.') parts.push_back(0);
    else if (c >= '0' && c <= '9' && parts.back() < 1000000) parts.back() = parts.back() * 10 + (c - '0');
  }
  return parts;
}

// TensorRT's Python package leaves out the build number in some releases, its library knows it.
bool same_tensorrt(const std::string& built, const std::string& here) {
  const std::vector<int64_t> a = numbers(built), b = numbers(here);
  const size_t known = std::min(a.size(), b.size());
  return known >= 3 && std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(known), b.begin());
}

Passport parse(const Json& json) {
  if (json.kind != Json::kObject) throw JsonError("it is no object");
  const int64_t schema = member(json, "schema", Json::kInteger).integer;
  if (schema != kSchema)
    throw JsonError("schema " + std::to_string(schema) + ", this version of capsedge reads " + std::to_string(kSchema));
  Passport p;
  const Json& machine = member(json, "machine", Json::kObject);
  p.machine = {text(machine, "tensorrt"), text(machine, "cuda"), text(machine, "gpu"), text(machine, "compute_capability"),
               text(machine, "architecture")};
  p.plugin_sha256 = text(json, "plugin_sha256");
  p.fused = text(json, "plugin") == "fused";
  const std::vector<Json>& batch = member(json, "batch", Json::kArray).items;
  if (batch.size() != 3) throw JsonError("'batch' has " + std::to_string(batch.size()) + " sizes");
  p.smallest_batch = batch[0].whole(), p.best_batch = batch[1].whole(), p.largest_batch = batch[2].whole();
  if (p.smallest_batch < 1 || p.smallest_batch > p.best_batch || p.best_batch > p.largest_batch || p.largest_batch > INT32_MAX)
    throw JsonError("'batch' is not smallest, best and largest");
  for (const auto& [name, value] : member(json, "metadata", Json::kObject).members) p.metadata[name] = value.string();
  p.command = text(json, "command");
  if (json.find("target") != nullptr) {
    const std::string& target = text(json, "target");
    p.portable = target == "tensorrt-rtx";
    if (!p.portable && target != "tensorrt") throw JsonError("'target' is '" + target + "'");
  }
  if (json.find("compute_capabilities") != nullptr)
    for (const Json& one : member(json, "compute_capabilities", Json::kArray).items)
      p.compute_capabilities.push_back(one.string());
  if (p.portable == p.compute_capabilities.empty()) throw JsonError("'compute_capabilities' do not go with 'target'");
  return p;
}

}  // namespace

Passport read_passport(const std::string& engine, std::string_view bytes) {
  const std::string path = engine + ".json";
  if (!is_file(path))
    throw Failure(CAPSEDGE_ARTEFACT, engine + " has no passport.",
                  path + " should lie beside it and say what the engine was built for.",
                  "Copy both files, or build the engine here: `capsedge build MODEL.onnx`.");
  Passport passport;
  try {
    const Json json = parse_json(read_file(path, kMostBytes, "a passport"), kMostBytes);
    passport = parse(json);
    if (member(json, "engine_bytes", Json::kInteger).integer != static_cast<int64_t>(bytes.size()) ||
        text(json, "engine_sha256") != sha256(bytes))
      throw Failure(CAPSEDGE_ARTEFACT, engine + " is not the engine that its passport describes.",
                    "Its size or its checksum differs: it was replaced, cut off or damaged.",
                    "Build it again: `" + passport.command + "`.");
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The passport " + path + " cannot be read.", std::string(error.what()) + ".",
                  "Build the engine again: `capsedge build MODEL.onnx`.");
  }
  return passport;
}

void check_passport(const std::string& engine, const Passport& passport, const Machine& here, const std::string& plugin) {
  const Machine& built = passport.machine;
  std::string amiss;
  const auto note = [&](const std::string& what) { amiss += (amiss.empty() ? "" : "; ") + what; };
  const auto differs = [&](const char* name, const std::string& then, const std::string& now) {
    note(std::string(name) + " is " + now + ", the engine needs " + then);
  };
  const char* const title = passport.portable ? "TensorRT-RTX" : "TensorRT";
  if (!same_tensorrt(built.tensorrt, here.tensorrt)) differs(title, built.tensorrt, here.tensorrt);
  if (built.architecture != here.architecture) differs("CPU architecture", built.architecture, here.architecture);
  const std::vector<std::string>& listed = passport.compute_capabilities;
  if (passport.portable) {
    if (std::find(listed.begin(), listed.end(), here.compute_capability) == listed.end())
      note("the GPU " + here.gpu + " has compute capability " + here.compute_capability + ", the engine is for " +
           joined(listed));
  } else {
    if (built.compute_capability != here.compute_capability)
      differs("compute capability", built.compute_capability, here.compute_capability);
    if (built.gpu != here.gpu) differs("GPU", built.gpu, here.gpu);
  }
  if (numbers(here.cuda) < numbers(built.cuda))
    note("the driver is for CUDA " + here.cuda + ", the engine needs " + built.cuda);
  if (!passport.plugin_sha256.empty()) {
    if (plugin.empty()) note("the plugin library of capsedge is not here");
    else if (sha256(read_file(plugin, kMostPluginBytes, "a plugin library")) != passport.plugin_sha256)
      note("the plugin library " + plugin + " is not the one it was built with");
  }
  if (!amiss.empty())
    throw Failure(CAPSEDGE_ARTEFACT, engine + " was not built for this machine.",
                  amiss + ". It was built for " +
                      (passport.portable ? "RTX GPUs of compute capability " + joined(listed)
                                         : built.gpu + ", compute capability " + built.compute_capability) +
                      " on " + built.architecture + ", with " + title + " " + built.tensorrt +
                      (built.cuda.empty() ? "" : " and CUDA " + built.cuda) + ".",
                  (passport.portable ? "Build it with this TensorRT-RTX and for this GPU, by `--compute-capability`: `"
                                     : "Build it here: `") +
                      passport.command + "`.");
}

}  // namespace capsedge::embedding
