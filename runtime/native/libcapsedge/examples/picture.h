/* Reads a PNG file for the examples: with libpng where the program is compiled with -DEXAMPLES_LIBPNG and linked to it, which
 * CMakeLists.txt does where libpng is installed; otherwise with the reader in small_png.h. */
#ifndef CAPSEDGE_EXAMPLES_PICTURE_H_
#define CAPSEDGE_EXAMPLES_PICTURE_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capsedge.h"

typedef struct picture {
  void* pixels; /* free() it */
  int32_t type; /* CAPSEDGE_UINT8 or CAPSEDGE_UINT16 */
  int32_t height, width, channels;
} picture;

/* A file of some kilobytes can state any size, so sizes are checked before memory is allocated. */
static int picture_fits(uint32_t width, uint32_t height) {
  return width - 1 < 32768 && height - 1 < 32768 && (uint64_t)width * height <= 1u << 26;
}

/* Both readers define this: NULL on success, otherwise the reason for the failure, and no picture. */
static const char* picture_decode(FILE* file, picture* image);

#ifdef EXAMPLES_LIBPNG
#include "full_png.h"
#else
#include "small_png.h"
#endif

static const char* picture_read(const char* path, picture* image) {
  memset(image, 0, sizeof *image);
  FILE* const file = fopen(path, "rb");
  if (file == NULL) return "the file cannot be read";
  const char* const error = picture_decode(file, image);
  fclose(file);
  return error;
}

#endif
