/* Classify images in C:  classify [--gpu] MODEL IMAGE...
 * Prints one line per image: its name, its classes with their scores and the first values of their poses; the values and
 * units of a model for regression; of a segmentation, the share of each class; that there is nothing to see in a blank
 * image, where the model has a criterion for that. */
#include <stdio.h>
#include <string.h>

#include "capsedge.h"
#include "names.h"
#include "picture.h"

/* Prints and releases an error; returns 1 if there was one. */
static int failed(capsedge_status* status) {
  if (status == NULL) return 0;
  fprintf(stderr, "error: %s\n", capsedge_status_message(status));
  const int code = capsedge_status_code(status); /* the exit codes of the command line */
  capsedge_status_release(status);
  return code;
}

/* Prints the values of a regression; returns the code of a failure. */
static int print_values(capsedge_session* session, const capsedge_result* result) {
  for (size_t k = 0; k < result->value_count; ++k) {
    const char *name = NULL, *unit = NULL;
    const int refused = failed(capsedge_value_name(session, k, &name, &unit));
    if (refused != 0) return refused;
    printf("%s %s %.4g%s%s", k ? "," : "", name, result->values[k], unit[0] ? " " : "", unit);
  }
  printf("\n");
  return 0;
}

/* " 7, length 0.9576, pose 0.0125 -0.3312 ...", labels after the first after a semicolon. */
static void print_label(const capsedge_result* result, const capsedge_label* label, int first) {
  const char* const marked = result->atypical != NULL ? " (nothing to see)" : "";
  printf("%s %s%s, %s %.4f", first ? "" : ";", label->name, marked, result->score_kind, label->score);
  for (int p = 0; p < result->pose_size && p < 4; ++p) printf("%s %.4f", p ? "" : ", pose", label->pose[p]);
  if (result->pose_size > 4) printf(" ...");
}

/* " background 0.8643, digit 0.1357": of each class, its share of the pixels that the network saw. */
static int print_shares(capsedge_session* session, const capsedge_result* result) {
  const size_t size = (size_t)result->mask_height * (size_t)result->mask_width;
  size_t counts[256] = {0};
  for (size_t k = 0; k < size; ++k) ++counts[result->mask[k]];
  const char* between = "";
  for (int32_t k = 0; k < 255; ++k) {
    if (counts[k] == 0) continue;
    const char* name = NULL;
    const int refused = failed(capsedge_class_name(session, k, &name));
    if (refused != 0) return refused;
    printf("%s %s %.4f", between, name, (double)counts[k] / (double)(size - counts[255]));
    between = ",";
  }
  printf("\n");
  return 0;
}

/* Prints the line of a prediction; returns the code of a failure. */
static int print_result(capsedge_session* session, capsedge_prediction* prediction, size_t index, const char* path) {
  capsedge_result result = CAPSEDGE_RESULT_INIT;
  const int refused = failed(capsedge_prediction_result(prediction, index, &result));
  if (refused != 0) return refused;
  if (result.atypical != NULL) fprintf(stderr, "%s: nothing to see: %s\n", path, result.atypical);
  printf("%s:", path);
  if (result.value_count > 0) {
    if (result.atypical != NULL) printf(" (nothing to see)");
    return print_values(session, &result);
  }
  if (result.mask != NULL) {
    if (result.atypical != NULL) printf(" (nothing to see)");
    return print_shares(session, &result);
  }
  for (size_t k = 0; k < result.label_count; ++k) print_label(&result, &result.labels[k], k == 0);
  printf(result.label_count == 0 ? " -\n" : "\n");
  return 0;
}

static int classify(capsedge_session* session, capsedge_prediction* prediction, const char* path) {
  picture read;
  const char* const error = picture_read(path, &read);
  if (error != NULL) {
    fprintf(stderr, "error: %s: %s\n", path, error);
    return CAPSEDGE_USAGE;
  }
  capsedge_image image = {0};
  image.pixels = read.pixels;
  image.type = read.type;
  image.height = read.height;
  image.width = read.width;
  image.channels = read.channels;
  int code = failed(capsedge_predict(session, &image, 1, NULL, prediction));
  free(read.pixels);
  size_t count = 0; /* 1: that of one image */
  if (code == 0) code = failed(capsedge_prediction_count(prediction, &count));
  for (size_t i = 0; i < count && code == 0; ++i) code = print_result(session, prediction, i, path);
  return code;
}

int main(int count, char** words) {
  words = names_of(count, words);
  const int on_gpu = count > 1 && strcmp(words[1], "--gpu") == 0;
  words += on_gpu;
  count -= on_gpu;
  if (count < 3) {
    fprintf(stderr, "usage: classify [--gpu] MODEL IMAGE...\n");
    return CAPSEDGE_USAGE;
  }
  capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
  if (on_gpu) options.provider = CAPSEDGE_PROVIDER_CUDA; /* engines are on a GPU anyway */
  capsedge_session* session = NULL;
  capsedge_prediction* prediction = NULL;
  int code = failed(capsedge_open(words[1], &options, &session));
  if (code == 0) code = failed(capsedge_prediction_create(&prediction));
  for (int i = 2; i < count && code == 0; ++i) code = classify(session, prediction, words[i]);
  if (prediction != NULL) failed(capsedge_prediction_close(prediction));
  if (session != NULL) failed(capsedge_close(session));
  return code;
}
