/* Classify images in C:  classify MODEL IMAGE.png...
 * Prints one line per image: its name, the best class, its score, and the first values of its pose; the values and units of
 * a model for regression; that there is nothing to see in a blank image, where the model has a criterion for that. */
#include <stdio.h>

#include "capsedge.h"
#include "png.h"

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

static int classify(capsedge_session* session, capsedge_prediction* prediction, const char* path) {
  png_image png;
  const char* const error = png_read(path, &png);
  if (error != NULL) {
    fprintf(stderr, "error: %s: %s\n", path, error);
    return CAPSEDGE_USAGE;
  }
  capsedge_image image = {0};
  image.pixels = png.pixels;
  image.type = CAPSEDGE_UINT8;
  image.height = png.height;
  image.width = png.width;
  image.channels = png.channels;
  const int code = failed(capsedge_predict(session, &image, 1, NULL, prediction));
  free(png.pixels);
  if (code != 0) return code;

  size_t images = 0;
  int refused = failed(capsedge_prediction_count(prediction, &images));
  for (size_t i = 0; i < images && refused == 0; ++i) {
    capsedge_result result = CAPSEDGE_RESULT_INIT;
    refused = failed(capsedge_prediction_result(prediction, i, &result));
    if (refused == 0 && result.nothing != NULL) {
      printf("%s: nothing to see: %s\n", path, result.nothing);
      continue;
    }
    if (refused == 0 && result.value_count > 0) {
      printf("%s:", path);
      refused = print_values(session, &result);
    }
    for (size_t k = 0; k < result.label_count; ++k) {
      const capsedge_label* const label = &result.labels[k];
      printf("%s: class %s, %s %.4f, pose", path, label->name, result.score_kind, label->score);
      for (int p = 0; p < result.pose_size && p < 4; ++p) printf(" %.4f", label->pose[p]);
      printf("\n");
    }
  }
  return refused;
}

int main(int count, char** words) {
  if (count < 3) {
    fprintf(stderr, "usage: classify MODEL IMAGE.png...\n");
    return CAPSEDGE_USAGE;
  }
  capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
  capsedge_session* session = NULL;
  capsedge_prediction* prediction = NULL;
  int code = failed(capsedge_open(words[1], &options, &session));
  if (code == 0) code = failed(capsedge_prediction_create(&prediction));
  for (int i = 2; i < count && code == 0; ++i) code = classify(session, prediction, words[i]);
  if (prediction != NULL) failed(capsedge_prediction_close(prediction));
  if (session != NULL) failed(capsedge_close(session));
  return code;
}
