#include "engine_metadata.h"

#include <algorithm>
#include <vector>

#include "backend.h"
#include "failure.h"
#include "files.h"
#include "json.h"
#include "sha256.h"
#include "system/system.h"
#include "vocabulary.h"

namespace capsedge::libcapsedge {

namespace {

const std::string& text(const Json& object, const char* name) { return object.member(name, Json::kString).text; }

// A name that needs no quotes in a shell and is not an option.
bool is_plain(const std::string& name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 255 && plain(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return plain(c) || std::string_view("._+-").find(c) != std::string_view::npos; });
}

// As "8.6" or "12.0".
bool is_capability(const std::string& text) {
  const size_t point = text.find('.');
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return (point == 1 || point == 2) && text.size() == point + 2 && digit(text[0]) && digit(text[point - 1]) && digit(text.back());
}

// The parts of "10.3.0.26", without words.
std::vector<int64_t> numbers(const std::string& version) {
  std::vector<int64_t> parts(1, 0);
  for (const char c : version) {
    if (c == '.') parts.push_back(0);
    else if (c >= '0' && c <= '9' && parts.back() < 1000000) parts.back() = parts.back() * 10 + (c - '0');
  }
  return parts;
}

// Some releases of TensorRT's Python package omit the build number; its library reports it.
bool same_tensorrt(const std::string& built, const std::string& here) {
  const std::vector<int64_t> a = numbers(built), b = numbers(here);
  const size_t known = std::min(a.size(), b.size());
  return known >= 3 && std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(known), b.begin());
}

EngineMetadata::Range range_of(const Json& json, const char* name) {
  const std::vector<Json>& sizes = json.member(name, Json::kArray).items;
  if (sizes.size() != 3) throw JsonError("'" + std::string(name) + "' has " + std::to_string(sizes.size()) + " sizes");
  const EngineMetadata::Range range{sizes[0].whole(), sizes[1].whole(), sizes[2].whole()};
  if (range.smallest < 1 || range.smallest > range.best || range.best > range.largest || range.largest > INT32_MAX)
    throw JsonError("'" + std::string(name) + "' is not smallest, best and largest");
  return range;
}

// As `capsedge build` takes it.
std::string text_of_range(const EngineMetadata::Range& range) {
  const std::string low = std::to_string(range.smallest), high = std::to_string(range.largest);
  return low == high ? low : low + ":" + std::to_string(range.best) + ":" + high;
}

EngineMetadata parse(const Json& json) {
  const int64_t schema = json.member("schema", Json::kInteger).integer;
  if (schema != spec::kEngineSchema)
    throw JsonError("schema " + std::to_string(schema) + "; this version of capsedge reads " + std::to_string(spec::kEngineSchema));
  json.only(spec::kEngineMembers);
  for (const char* name : {"engine_sha256", "plugin_library", "source_sha256", "command"}) text(json, name);
  for (const auto& layer : json.member("layers", Json::kObject).members) layer.second.check(Json::kInteger);
  EngineMetadata p;
  const Json& machine = json.member("machine", Json::kObject);
  machine.only(spec::kMachineMembers);
  if (machine.find("multiprocessors") != nullptr) machine.member("multiprocessors", Json::kInteger);
  if (machine.find("power_mode") != nullptr) text(machine, "power_mode");
  p.machine = {text(machine, "tensorrt"), text(machine, "cuda"), text(machine, "gpu"), text(machine, "compute_capability"),
               text(machine, "architecture")};
  p.plugin_sha256 = text(json, "plugin_sha256");
  p.plugin = text_of(known_word<spec::Plugin>(text(json, "plugin"), "plugin"));
  p.precision = text_of(known_word<spec::Precision>(text(json, "precision"), "precision"));
  p.source = text(json, "source");
  p.batch = range_of(json, "batch");
  const Json* const length = json.find("length");
  if (length != nullptr && !json.member("length", Json::kArray).items.empty()) p.length = range_of(json, "length");
  for (const auto& [name, value] : json.member("metadata", Json::kObject).members) p.metadata[name] = value.string();
  if (json.find("products") != nullptr)
    for (const auto& product : json.member("products", Json::kObject).members) product.second.check(Json::kInteger);
  p.portable = json.find("target") != nullptr &&
               known_word<spec::Target>(text(json, "target"), "target") == spec::Target::kTensorrtRtx;
  if (json.find("compute_capabilities") != nullptr)
    for (const Json& one : json.member("compute_capabilities", Json::kArray).items) {
      if (!is_capability(one.string())) throw JsonError("compute capability '" + one.string().substr(0, 80) + "'");
      p.compute_capabilities.push_back(one.string());
    }
  if (p.portable == p.compute_capabilities.empty()) throw JsonError("'compute_capabilities' do not go with 'target'");
  return p;
}

}  // namespace

std::string EngineMetadata::rebuild() const {
  std::string target;
  for (const std::string& capability : compute_capabilities)
    target += (target.empty() ? " --target tensorrt-rtx --compute-capability " : ",") + capability;
  return "capsedge build " + (is_plain(source) ? source : "MODEL.onnx") + " --plugin " + plugin + target + " --precision " + precision +
         " --batch " + text_of_range(batch) + (length.largest > 0 ? " --length " + text_of_range(length) : "");
}

EngineMetadata parse_engine_metadata(std::string_view document) { return parse(parse_json(document)); }

EngineMetadata read_engine_metadata(const std::string& engine, std::string_view bytes) {
  const std::string path = engine + ".json";
  if (!is_file(path))
    throw Failure(CAPSEDGE_ARTEFACT, engine + " has no metadata file.",
                  path + " should be next to it and state what the engine was built for.",
                  "Copy both files, or build the engine here: `capsedge build MODEL.onnx`.");
  EngineMetadata engine_metadata;
  try {
    const Json json = parse_json(read_file(path, limits::kJsonBytes, "a metadata file"));
    engine_metadata = parse(json);
    if (json.member("engine_bytes", Json::kInteger).integer != static_cast<int64_t>(bytes.size()) ||
        text(json, "engine_sha256") != sha256(bytes))
      throw Failure(CAPSEDGE_ARTEFACT, engine + " is not the engine that its metadata file describes.",
                    "Its size or its checksum differs: it was replaced, cut off or damaged.",
                    "Build it again: `" + engine_metadata.rebuild() + "`.");
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The metadata file " + path + " cannot be read.", std::string(error.what()) + ".",
                  "Build the engine again: `capsedge build MODEL.onnx`.");
  }
  return engine_metadata;
}

void check_engine_metadata(const std::string& engine, const EngineMetadata& engine_metadata, const Machine& here, const std::string& plugin) {
  const Machine& built = engine_metadata.machine;
  std::string problems;
  const auto note = [&](const std::string& what) { problems += (problems.empty() ? "" : "; ") + what; };
  const auto differs = [&](const char* name, const std::string& then, const std::string& now) {
    note(std::string(name) + " is " + now + ", the engine needs " + then);
  };
  const char* const title = engine_metadata.portable ? "TensorRT-RTX" : "TensorRT";
  if (!same_tensorrt(built.tensorrt, here.tensorrt)) differs(title, built.tensorrt, here.tensorrt);
  if (built.architecture != here.architecture) differs("CPU architecture", built.architecture, here.architecture);
  const std::vector<std::string>& listed = engine_metadata.compute_capabilities;
  EngineMetadata wanted = engine_metadata;
  if (engine_metadata.portable) {
    if (std::find(listed.begin(), listed.end(), here.compute_capability) == listed.end()) {
      note("the GPU " + here.gpu + " has compute capability " + here.compute_capability + ", the engine is for " +
           joined(listed));
      wanted.compute_capabilities.push_back(here.compute_capability);
    }
  } else {
    if (built.compute_capability != here.compute_capability)
      differs("compute capability", built.compute_capability, here.compute_capability);
    if (built.gpu != here.gpu) differs("GPU", built.gpu, here.gpu);
  }
  if (numbers(here.cuda) < numbers(built.cuda))
    note("the driver is for CUDA " + here.cuda + ", the engine needs " + built.cuda);
  if (!engine_metadata.plugin_sha256.empty()) {
    if (plugin.empty()) note("the plugin library of capsedge is not here");
    else if (sha256(read_file(plugin, limits::kPluginBytes, "a plugin library")) != engine_metadata.plugin_sha256)
      note("the plugin library " + plugin + " is not the one it was built with");
  }
  if (!problems.empty())
    throw Failure(CAPSEDGE_ARTEFACT, engine + " was not built for this machine.",
                  problems + ". It was built for " +
                      (engine_metadata.portable ? "RTX GPUs of compute capability " + joined(listed)
                                         : built.gpu + ", compute capability " + built.compute_capability) +
                      " on " + built.architecture + ", with " + title + " " + built.tensorrt +
                      (built.cuda.empty() ? "" : " and CUDA " + built.cuda) + ".",
                  std::string("Build it ") + (engine_metadata.portable ? "again" : "here") + ": `" + wanted.rebuild() + "`.");
}

}  // namespace capsedge::libcapsedge
