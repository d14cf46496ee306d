/* Values in, values out, and the description of a model:  tensors MODEL
 * Describes the model, prepares a drawn image, runs the model on it with all outputs, draws a picture of a pose if the model
 * has a decoder, and prints the counters. */
#include <stdio.h>
#include <stdlib.h>

#include "capsedge.h"
#include "names.h"

static void check(capsedge_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "error: %s\n", capsedge_status_message(status));
  exit((int)capsedge_status_code(status));
}

static void print_port(const char* kind, const capsedge_port* port) {
  printf("%s %s: type %d, shape", kind, port->name, (int)port->type);
  for (int i = 0; i < port->rank; ++i) printf(port->shape[i] < 0 ? " N" : " %lld", (long long)port->shape[i]);
  printf("\n");
}

/* The bytes may come from anywhere: a file, a flash partition, the program's own data. */
static capsedge_session* open_file(const char* path) {
  FILE* const file = open_to_read(path);
  if (file == NULL) {
    fprintf(stderr, "error: %s cannot be read\n", path);
    exit(CAPSEDGE_USAGE);
  }
  fseek(file, 0, SEEK_END);
  const size_t size = (size_t)ftell(file);
  rewind(file);
  void* const bytes = malloc(size);
  const size_t got = fread(bytes, 1, size, file);
  fclose(file);
  capsedge_session* session = NULL;
  check(capsedge_open_bytes(bytes, got, NULL, &session));
  free(bytes);
  return session;
}

static void describe(capsedge_session* session, const capsedge_description* about) {
  printf("libcapsedge %s, %s %s, %s operators\n", capsedge_version(), about->backend, about->backend_version, about->ops);
  const char* parity = NULL;
  check(capsedge_property(session, "capsedge.parity", &parity));
  printf("parity of the export: %s\n", parity ? parity : "not stated");
  for (int j = 0; j < about->class_count; ++j) {
    const char* name = NULL;
    check(capsedge_class_name(session, j, &name));
    printf("%s%s", j ? ", " : "classes: ", name);
  }
  printf("\n");
}

/* One image, prepared by the model's own preprocessing: a light vertical bar, read upside down. The caller frees the values. */
static capsedge_tensor prepared_input(capsedge_session* session) {
  static unsigned char pixels[64][48];
  for (int y = 8; y < 56; ++y)
    for (int x = 20; x < 28; ++x) pixels[y][x] = 255;
  const capsedge_image image = {pixels[63], CAPSEDGE_UINT8, 64, 48, 1, -48};
  capsedge_preprocessing how = CAPSEDGE_PREPROCESSING_INIT;
  check(capsedge_preprocessing_of(session, &how));
  const size_t count = (size_t)how.channels * (size_t)how.height * (size_t)how.width;
  float* const values = malloc(count * sizeof(float));
  check(capsedge_prepare(&how, &image, 0, values, count));

  capsedge_port port = CAPSEDGE_PORT_INIT;
  check(capsedge_input(session, 0, &port));
  print_port("input", &port);
  capsedge_tensor input = {0};
  input.data = values;
  input.bytes = count * sizeof(float);
  input.type = port.type;
  input.rank = 4;
  input.shape[0] = 1;
  input.shape[1] = how.channels_last ? how.height : how.channels;
  input.shape[2] = how.channels_last ? how.width : how.height;
  input.shape[3] = how.channels_last ? how.channels : how.width;
  return input;
}

/* Room for every output. */
static capsedge_tensor* output_room(capsedge_session* session, size_t count) {
  capsedge_tensor* const outputs = calloc(count, sizeof *outputs);
  for (size_t i = 0; i < count; ++i) {
    capsedge_port port = CAPSEDGE_PORT_INIT;
    check(capsedge_output(session, i, &port));
    print_port("output", &port);
    outputs[i].bytes = 1 << 20; /* the capacity; the call sets the number of bytes written */
    outputs[i].data = malloc(outputs[i].bytes);
  }
  return outputs;
}

static void print_best(capsedge_session* session, const float* scores, int classes) {
  int best = 0;
  for (int j = 1; j < classes; ++j)
    if (scores[j] > scores[best]) best = j;
  const char* name = NULL;
  check(capsedge_class_name(session, best, &name));
  printf("the bar is a %s\n", name);
}

/* The picture of a class from a pose that no image had. */
static void draw(capsedge_session* session) {
  capsedge_decoder decoder = CAPSEDGE_DECODER_INIT;
  capsedge_status* const status = capsedge_decoder_of(session, &decoder);
  if (status != NULL) { /* no decoder */
    capsedge_status_release(status);
    return;
  }
  const size_t values = (size_t)decoder.channels * (size_t)decoder.height * (size_t)decoder.width;
  float* const pose = calloc((size_t)decoder.pose_size, sizeof *pose);
  float* const picture = malloc(values * sizeof *picture);
  const int32_t first = 0;
  for (int k = 0; k < decoder.pose_size; ++k) pose[k] = 0.25f;
  check(capsedge_decode(session, pose, &first, 1, picture, values));
  printf("a picture of %d x %d from %d values\n", (int)decoder.width, (int)decoder.height, (int)decoder.pose_size);
  free(picture);
  free(pose);
}

/* Two pixels of a camera as RGB. */
static void convert(void) {
  static const uint8_t yuyv[4] = {235, 128, 16, 128}; /* white, black */
  uint8_t rgb[6];
  capsedge_frame frame = CAPSEDGE_FRAME_INIT;
  frame.format = CAPSEDGE_FRAME_YUYV;
  frame.height = 1;
  frame.width = 2;
  frame.planes[0] = yuyv;
  check(capsedge_frame_to_rgb(&frame, rgb, sizeof rgb));
  printf("a frame with levels %d and %d\n", rgb[0], rgb[3]);
}

int main(int count, char** words) {
  words = names_of(count, words);
  if (count != 2) {
    fprintf(stderr, "usage: tensors MODEL\n");
    return CAPSEDGE_USAGE;
  }
  capsedge_session* const session = open_file(words[1]);
  capsedge_description about = CAPSEDGE_DESCRIPTION_INIT;
  check(capsedge_describe(session, &about));
  describe(session, &about);

  capsedge_tensor input = prepared_input(session);
  capsedge_tensor* const outputs = output_room(session, about.output_count);
  check(capsedge_warm_up(session, 1, 2));
  check(capsedge_run(session, &input, 1, outputs, about.output_count));
  for (size_t i = 0; i < about.output_count; ++i) printf("output %d: %zu bytes\n", (int)i, outputs[i].bytes);
  print_best(session, outputs[0].data, about.class_count);

  draw(session);
  convert();

  capsedge_counters counters = CAPSEDGE_COUNTERS_INIT;
  check(capsedge_read_counters(session, &counters));
  printf("%llu runs of %llu images\n", (unsigned long long)counters.runs, (unsigned long long)counters.images);

  for (size_t i = 0; i < about.output_count; ++i) free(outputs[i].data);
  free(outputs);
  free(input.data);
  check(capsedge_close(session));
  return 0;
}
