/* Reads an image file for the examples: PGM and PPM (P5, P6), and PNG where the program is compiled with -DEXAMPLES_LIBPNG and
 * linked to libpng, as CMakeLists.txt does where libpng is installed. */
#ifndef CAPSEDGE_EXAMPLES_PICTURE_H_
#define CAPSEDGE_EXAMPLES_PICTURE_H_

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capsedge.h"
#include "names.h"

typedef struct picture {
  void* pixels; /* free() it */
  int32_t type; /* CAPSEDGE_UINT8 or CAPSEDGE_UINT16 */
  int32_t height, width, channels;
} picture;

/* A file of some kilobytes can state any size, so sizes are checked before memory is allocated. */
static int picture_fits(uint32_t width, uint32_t height) {
  return width - 1 < 32768 && height - 1 < 32768 && (uint64_t)width * height <= 1u << 26;
}

#ifdef EXAMPLES_LIBPNG
#include "picture_png.h"
#else
static const char* picture_png(FILE* file, picture* image) {
  (void)file;
  (void)image;
  return "without libpng, only PGM and PPM files (P5, P6) can be read";
}
#endif

/* The next number of a header, with the character after it; 0 where there is none. */
static uint32_t pnm_number(FILE* file) {
  uint32_t value = 0;
  int c = fgetc(file);
  for (int comment = 0; comment || c == '#' || isspace(c); c = fgetc(file)) {
    if (c == EOF) return 0;
    comment = c == '#' || (comment && c != '\n');
  }
  for (; isdigit(c); c = fgetc(file))
    if (value < 100000) value = 10 * value + (uint32_t)(c - '0');
  return isspace(c) ? value : 0;
}

/* The rest of a PGM or PPM file: 8 bits, or 16 of grey. */
static const char* picture_pnm(FILE* file, int channels, picture* image) {
  const uint32_t width = pnm_number(file), height = pnm_number(file), white = pnm_number(file);
  if (width == 0 || height == 0 || white == 0) return "it is damaged";
  if (!picture_fits(width, height)) return "it is too large";
  if (white != 255 && (white != 65535 || channels != 1)) return "its white is neither 255 nor, in grey, 65535";
  const size_t count = (size_t)width * height * (size_t)channels, bytes = white == 255 ? 1 : 2;
  unsigned char* const pixels = (unsigned char*)malloc(count * bytes);
  if (pixels == NULL) return "there is not enough memory";
  if (fread(pixels, bytes, count, file) != count) {
    free(pixels);
    return "it is damaged";
  }
  for (size_t k = 0; bytes == 2 && k < count; ++k) { /* files are big-endian */
    const uint16_t value = (uint16_t)(pixels[2 * k] << 8 | pixels[2 * k + 1]);
    memcpy(pixels + 2 * k, &value, 2);
  }
  image->pixels = pixels;
  image->type = bytes == 2 ? CAPSEDGE_UINT16 : CAPSEDGE_UINT8;
  image->width = (int32_t)width;
  image->height = (int32_t)height;
  image->channels = channels;
  return NULL;
}

/* NULL on success, otherwise the reason for the failure, and no picture. */
static const char* picture_read(const char* path, picture* image) {
  memset(image, 0, sizeof *image);
  FILE* const file = open_to_read(path);
  if (file == NULL) return "the file cannot be read";
  const int first = fgetc(file), second = fgetc(file);
  const int pnm = first == 'P' && (second == '5' || second == '6');
  if (!pnm) rewind(file);
  const char* const error = pnm ? picture_pnm(file, second == '5' ? 1 : 3, image) : picture_png(file, image);
  fclose(file);
  return error;
}

#endif
