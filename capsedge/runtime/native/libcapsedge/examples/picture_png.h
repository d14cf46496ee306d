/* PNG files of every kind, read with libpng: palettes, 1 to 16 bits, interlaced. Included by picture.h. */
#ifndef CAPSEDGE_EXAMPLES_PICTURE_PNG_H_
#define CAPSEDGE_EXAMPLES_PICTURE_PNG_H_

#include <png.h>
#include <setjmp.h>

/* What has to be freed, outside of the function that libpng leaves with longjmp. */
typedef struct png_reader {
  png_structp png;
  png_infop info;
  png_bytep pixels;
  png_bytepp rows;
} png_reader;

static void png_silent(png_structp png, png_const_charp message) {
  (void)png;
  (void)message;
}

static void png_stop(png_structp png, png_const_charp message) {
  (void)message;
  png_longjmp(png, 1);
}

/* The pixels as capsedge takes them: 8 bits, or 16 of grey; palettes become colours, transparent colours become alpha. */
static void png_convert(const png_reader* r) {
  const int colour = png_get_color_type(r->png, r->info);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(r->png);
  if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(r->png);
  else png_set_strip_16(r->png);
  if (png_get_valid(r->png, r->info, PNG_INFO_tRNS)) png_set_tRNS_to_alpha(r->png);
  const uint16_t one = 1;
  if (*(const unsigned char*)&one == 1) png_set_swap(r->png); /* files are big-endian */
  png_set_interlace_handling(r->png);
  png_read_update_info(r->png, r->info);
}

static const char* png_decode(png_reader* r, FILE* file, picture* image) {
  if (setjmp(png_jmpbuf(r->png))) return "it is damaged";
  png_init_io(r->png, file);
  png_set_sig_bytes(r->png, 8);
  png_read_info(r->png, r->info);
  const png_uint_32 width = png_get_image_width(r->png, r->info), height = png_get_image_height(r->png, r->info);
  if (!picture_fits(width, height)) return "it is too large";
  png_convert(r);
  const size_t row = png_get_rowbytes(r->png, r->info);
  r->pixels = (png_bytep)malloc(row * height);
  r->rows = (png_bytepp)malloc(height * sizeof *r->rows);
  if (r->pixels == NULL || r->rows == NULL) return "there is not enough memory";
  for (png_uint_32 y = 0; y < height; ++y) r->rows[y] = r->pixels + y * row;
  png_read_image(r->png, r->rows);
  image->type = png_get_bit_depth(r->png, r->info) == 16 ? CAPSEDGE_UINT16 : CAPSEDGE_UINT8;
  image->width = (int32_t)width;
  image->height = (int32_t)height;
  image->channels = png_get_channels(r->png, r->info);
  return NULL;
}

static const char* picture_png(FILE* file, picture* image) {
  unsigned char signature[8];
  if (fread(signature, 1, 8, file) != 8 || png_sig_cmp(signature, 0, 8) != 0) return "it is no PNG, PGM or PPM file";
  png_reader r = {NULL, NULL, NULL, NULL};
  const char* error = "there is not enough memory";
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, png_stop, png_silent);
  if (r.png) r.info = png_create_info_struct(r.png);
  if (r.info) error = png_decode(&r, file, image);
  png_destroy_read_struct(&r.png, &r.info, NULL);
  free(r.rows);
  if (error) free(r.pixels);
  else image->pixels = r.pixels;
  return error;
}

#endif
