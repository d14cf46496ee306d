// Classify images in C++, with the same output as `capsedge infer`:
//   classify [--top K] [--threshold T] [--invert] MODEL IMAGE...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capsedge.hpp"
#include "names.h"
#include "picture.h"

namespace {

using Row = std::vector<std::string>;

// Aligned columns with two spaces between them and none at the end of a line.
void print_table(const std::string& title, const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows)
    for (size_t k = 0; k < row.size(); ++k) widths[k] = std::max(widths[k], row[k].size());
  std::printf("%s\n", title.c_str());
  for (const Row& row : rows) {
    std::string line;
    for (size_t k = 0; k < row.size(); ++k) line += "  " + row[k] + std::string(widths[k] - row[k].size(), ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
  std::printf("\n");
}

// "yaw -3.2°, pitch 10°, depth 2.5 mm"
std::string values_text(const capsedge::Session& session, const capsedge::ImageResult& answer) {
  std::string text;
  for (size_t k = 0; k < answer.values.size(); ++k) {
    const auto value = session.value_name(k);
    if (!value) return value.error().message;
    char number[32];
    std::snprintf(number, sizeof number, "%.4g", answer.values[k]);
    const std::string unit = value->unit == "degrees" ? "\u00b0" : value->unit.empty() ? "" : " " + value->unit;
    text += (k > 0 ? ", " : "") + value->name + " " + number + unit;
  }
  return text;
}

// Of each class of a mask, its share of the pixels that the network saw; in rows of the table.
std::vector<Row> shares_of(const capsedge::Session& session, const capsedge::ImageResult& answer, const std::string& image) {
  std::vector<size_t> counts(256);
  for (const uint8_t number : answer.mask) ++counts[number];
  const size_t unseen = counts[255];
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, size_t part, size_t whole, const char* of) {
    char share[32];
    std::snprintf(share, sizeof share, "%.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
    rows.push_back({"", "", name, share + std::string(of)});
  };
  for (int32_t k = 0; k < 255; ++k) {
    if (counts[k] == 0) continue;
    const auto name = session.class_name(k);
    add(name ? *name : name.error().message, counts[k], answer.mask.size() - unseen, "");
  }
  if (unseen > 0) add("not seen", unseen, answer.mask.size(), " of the image");
  rows[0][0] = image;
  rows[0][1] = std::to_string(answer.mask_width) + "x" + std::to_string(answer.mask_height);
  return rows;
}

int complain(const capsedge::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message.c_str());
  return error.code;
}

}  // namespace

int main(int count, char** words) {
  words = names_of(count, words);
  capsedge::PredictOptions options;
  int at = 1;
  for (; at < count && words[at][0] == '-'; ++at) {
    const std::string word = words[at];
    if (word == "--top" && at + 1 < count) options.top(std::atoi(words[++at]));
    else if (word == "--threshold" && at + 1 < count) options.at_least(std::atof(words[++at]));
    else if (word == "--invert") options.dark_ink();
    else break;
  }
  if (count - at < 2 || words[at][0] == '-') {
    std::fprintf(stderr, "usage: classify [--top K] [--threshold T] [--invert] MODEL IMAGE...\n");
    return CAPSEDGE_USAGE;
  }
  const std::string model = words[at++];
  auto session = capsedge::Session::open(model);
  if (!session) return complain(session.error());
  auto about = session->describe();
  if (!about) return complain(about.error());
  const bool regression = about->value_count > 0;
  const bool segmentation = std::string(about->task) == "segmentation";
  if (about->score_kind == nullptr && !regression && !segmentation) return std::fprintf(stderr, "error: %s cannot predict\n", model.c_str()), CAPSEDGE_ARTEFACT;

  std::vector<Row> rows{{"image", "class", about->score_kind ? about->score_kind : ""}};
  if (regression) rows[0] = {"image", "values"};
  if (segmentation) rows[0] = {"image", "pixels", "class", "share"};
  int code = 0;
  for (; at < count; ++at) {
    picture read;
    if (const char* const error = picture_read(words[at], &read)) {
      std::fprintf(stderr, "error: %s: %s\n", words[at], error);
      code = CAPSEDGE_USAGE;
      continue;
    }
    const std::unique_ptr<void, void (*)(void*)> pixels(read.pixels, std::free);
    const capsedge_image image{read.pixels, read.type, read.height, read.width, read.channels, 0};
    const auto prediction = session->predict(image, options);
    if (!prediction) return complain(prediction.error());
    const capsedge::ImageResult answer = (*prediction)[0];
    if (answer.atypical) std::fprintf(stderr, "%s: nothing to see: %s\n", words[at], answer.atypical);
    const std::string marked = answer.atypical ? " (nothing to see)" : "";
    if (regression) {
      rows.push_back({words[at], values_text(*session, answer) + marked});
      continue;
    }
    if (segmentation) {
      for (Row& row : shares_of(*session, answer, words[at])) rows.push_back(std::move(row));
      continue;
    }
    const size_t before = rows.size();
    for (const capsedge_label& label : answer.labels) {
      char score[32];
      std::snprintf(score, sizeof score, "%.4f", label.score);
      const bool first = rows.size() == before;
      rows.push_back({first ? words[at] : "", std::string(label.name) + (first ? marked : ""), score});
    }
    if (rows.size() == before) rows.push_back({words[at], "-" + marked, ""});
  }
  if (rows.size() > 1) print_table(model.substr(model.rfind('/') + 1) + ", " + about->ops + " operators", rows);
  return code;
}
