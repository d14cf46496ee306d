// What libcapsedge reads of files and answers about images, for tests of builds that Python cannot load:
//   answers ONNXRUNTIME < JOBS
// A job is a line: `describe FILE`, or `predict FILE TOP_K THRESHOLD PIXEL...`, with `-` for no threshold, or
// `prepare FILE HEIGHT WIDTH INVERT`, of the pixels of spec/vectors. The facts of each are printed, one after the other: a
// name, how many bytes its text has, and the text; `end` follows the last.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "capsedge.h"

namespace {

void say(const char* name, const std::string& text) {
  std::printf("%s %zu\n", name, text.size());
  std::fwrite(text.data(), 1, text.size(), stdout);
}
void say(const char* name, const char* text) { say(name, std::string(text ? text : "")); }
void say(const char* name, double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  say(name, text);
}

// Whether a call succeeded; otherwise its status is printed.
bool done(capsedge_status* status) {
  if (status == nullptr) return true;
  say("code", static_cast<double>(capsedge_status_code(status)));
  say("message", capsedge_status_message(status));
  capsedge_status_release(status);
  return false;
}

void say_preprocessing(capsedge_session* session) {
  capsedge_preprocessing p = CAPSEDGE_PREPROCESSING_INIT;
  capsedge_status* const status = capsedge_preprocessing_of(session, &p);
  capsedge_status_release(status);
  if (status) return;
  say("height", p.height), say("width", p.width), say("channels", p.channels), say("scale", p.scale);
  for (size_t k = 0; k < p.mean_count; ++k) say("mean", p.mean[k]);
  for (size_t k = 0; k < p.std_count; ++k) say("std", p.std[k]);
  say("resize", p.resize), say("per_image", p.per_image);
  say("channels_last", p.channels_last), say("bgr", p.bgr);
}

void describe(capsedge_session* session) {
  capsedge_description d = CAPSEDGE_DESCRIPTION_INIT;
  if (!done(capsedge_describe(session, &d)) || d.architecture == nullptr) return;
  say("architecture", d.architecture), say("routing", d.routing), say("task", d.task);
  say("precision", d.precision), say("iterations", d.iterations), say("score_kind", d.score_kind);
  for (int32_t k = 0; k < d.class_count; ++k) {
    const char* name = nullptr;
    if (done(capsedge_class_name(session, k, &name))) say("class_name", name);
  }
  for (size_t k = 0; k < d.value_count; ++k) {
    const char *name = nullptr, *unit = nullptr;
    if (done(capsedge_value_name(session, k, &name, &unit))) say("value_name", name), say("unit", unit);
  }
  say_preprocessing(session);
}

void predict(capsedge_session* session, std::istream& job) {
  int32_t top = 0;
  std::string threshold;
  std::vector<uint8_t> pixels;
  job >> top >> threshold;
  for (int pixel = 0; job >> pixel;) pixels.push_back(static_cast<uint8_t>(pixel));
  capsedge_predict_options options = CAPSEDGE_PREDICT_OPTIONS_INIT;
  options.top_k = top, options.use_threshold = threshold != "-";
  if (options.use_threshold) options.threshold = std::stod(threshold);
  capsedge_image image{};
  image.pixels = pixels.data(), image.type = CAPSEDGE_UINT8, image.channels = 1;
  image.height = 1, image.width = static_cast<int32_t>(pixels.size());
  capsedge_prediction* prediction = nullptr;
  if (!done(capsedge_prediction_create(&prediction))) return;
  capsedge_result r = CAPSEDGE_RESULT_INIT;
  if (done(capsedge_predict(session, &image, 1, &options, prediction)) &&
      done(capsedge_prediction_result(prediction, 0, &r))) {
    for (size_t k = 0; k < r.label_count; ++k) say("label", r.labels[k].name);
    for (int32_t k = 0; k < r.class_count; ++k) say("score", r.scores[k]);
    for (int32_t k = 0; k < r.class_count * r.pose_size; ++k) say("pose", r.poses[k]);
    for (size_t k = 0; k < r.value_count; ++k) say("value", r.values[k]);
    describe(session);
  }
  done(capsedge_prediction_close(prediction));
}

void prepare(capsedge_session* session, std::istream& job) {
  int32_t invert = 0;
  capsedge_image image{};
  job >> image.height >> image.width >> invert;
  image.type = CAPSEDGE_UINT8, image.channels = 4;
  std::vector<uint8_t> pixels(size_t{4} * static_cast<size_t>(image.height) * static_cast<size_t>(image.width));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>((i * i * 7 + i * 13) >> 3);
  image.pixels = pixels.data();
  capsedge_preprocessing p = CAPSEDGE_PREPROCESSING_INIT;
  if (!done(capsedge_preprocessing_of(session, &p))) return;
  std::vector<float> values(static_cast<size_t>(p.height) * static_cast<size_t>(p.width) * static_cast<size_t>(p.channels));
  if (!done(capsedge_prepare(&p, &image, invert, values.data(), values.size()))) return;
  say("values", std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}

}  // namespace

int main(int, char** argv) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream job(line);
    std::string what, file;
    job >> what >> file;
    capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
    options.threads = 1, options.onnxruntime = argv[1];
    capsedge_session* session = nullptr;
    if (done(capsedge_open(file.c_str(), &options, &session))) {
      if (what == "predict") predict(session, job);
      else if (what == "prepare") prepare(session, job);
      else describe(session);
      done(capsedge_close(session));
    }
    say("end", "");
  }
  return 0;
}
