/* A small PNG reader for machines without libpng: 8-bit grey, grey and alpha, RGB, RGB and alpha, not interlaced. It does
 * not verify checksums. Included by picture.h. */
#ifndef CAPSEDGE_EXAMPLES_SMALL_PNG_H_
#define CAPSEDGE_EXAMPLES_SMALL_PNG_H_

typedef struct png_stream {
  const unsigned char* in;
  size_t size, at;
  uint32_t bits;
  int count;
  unsigned char* out;
  size_t room, length;
} png_stream;

static int png_bit(png_stream* s) {
  if (s->count == 0) {
    if (s->at >= s->size) return -1;
    s->bits = s->in[s->at++];
    s->count = 8;
  }
  const int bit = (int)(s->bits & 1u);
  s->bits >>= 1;
  --s->count;
  return bit;
}

static int png_bits(png_stream* s, int count) {
  int value = 0;
  for (int i = 0; i < count; ++i) {
    const int bit = png_bit(s);
    if (bit < 0) return -1;
    value |= bit << i;
  }
  return value;
}

typedef struct png_code {
  uint16_t counts[16], symbols[288];
} png_code;

static void png_make_code(png_code* code, const unsigned char* lengths, int count) {
  uint16_t next[16];
  memset(code, 0, sizeof *code);
  for (int i = 0; i < count; ++i) ++code->counts[lengths[i]];
  code->counts[0] = 0;
  next[1] = 0;
  for (int i = 1; i < 15; ++i) next[i + 1] = (uint16_t)(next[i] + code->counts[i]);
  for (int i = 0; i < count; ++i)
    if (lengths[i]) code->symbols[next[lengths[i]]++] = (uint16_t)i;
}

static int png_symbol(png_stream* s, const png_code* code) {
  int value = 0, first = 0, index = 0;
  for (int length = 1; length < 16; ++length) {
    const int bit = png_bit(s), count = code->counts[length];
    if (bit < 0) return -1;
    value |= bit;
    if (value - first < count) return code->symbols[index + value - first];
    index += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  return -1;
}

static int png_put(png_stream* s, int byte) {
  if (s->length >= s->room) return 0;
  s->out[s->length++] = (unsigned char)byte;
  return 1;
}

/* RFC 1951, 3.2.5. */
static int png_block(png_stream* s, const png_code* literals, const png_code* distances) {
  static const uint16_t kLength[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                     31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const unsigned char kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t kDistance[] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                       193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  for (;;) {
    int symbol = png_symbol(s, literals);
    if (symbol < 0) return 0;
    if (symbol == 256) return 1;
    if (symbol < 256) {
      if (!png_put(s, symbol)) return 0;
      continue;
    }
    symbol -= 257;
    if (symbol >= 29) return 0;
    const int extra = png_bits(s, kLengthBits[symbol]);
    const int where = png_symbol(s, distances);
    if (extra < 0 || where < 0 || where >= 30) return 0;
    const int more = png_bits(s, where < 4 ? 0 : where / 2 - 1);
    if (more < 0) return 0;
    const size_t distance = (size_t)kDistance[where] + (size_t)more;
    if (distance > s->length) return 0;
    for (int i = kLength[symbol] + extra; i > 0; --i)
      if (!png_put(s, s->out[s->length - distance])) return 0;
  }
}

static int png_inflate(png_stream* s) {
  static const unsigned char kOrder[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  unsigned char lengths[320];
  png_code literals, distances;
  s->at = 2; /* the zlib header */
  for (int last = 0; !last;) {
    last = png_bit(s);
    const int kind = png_bits(s, 2);
    if (last < 0) return 0;
    if (kind == 0) {
      s->count = 0;
      if (s->size - s->at < 4) return 0;
      size_t length = s->in[s->at] | (size_t)s->in[s->at + 1] << 8;
      s->at += 4;
      if (s->size - s->at < length) return 0;
      while (length-- > 0)
        if (!png_put(s, s->in[s->at++])) return 0;
      continue;
    }
    if (kind == 1) {
      for (int i = 0; i < 288; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
      png_make_code(&literals, lengths, 288);
      memset(lengths, 5, 30);
      png_make_code(&distances, lengths, 30);
    } else if (kind == 2) {
      const int literal_count = png_bits(s, 5) + 257, distance_count = png_bits(s, 5) + 1, code_count = png_bits(s, 4) + 4;
      if (literal_count > 286 || distance_count > 30) return 0;
      memset(lengths, 0, sizeof lengths);
      for (int i = 0; i < code_count; ++i) {
        const int length = png_bits(s, 3);
        if (length < 0) return 0;
        lengths[kOrder[i]] = (unsigned char)length;
      }
      png_make_code(&literals, lengths, 19);
      int filled = 0;
      while (filled < literal_count + distance_count) {
        const int symbol = png_symbol(s, &literals);
        if (symbol < 0) return 0;
        int value = 0, times = 1;
        if (symbol < 16) {
          value = symbol;
        } else {
          if (symbol == 16 && filled == 0) return 0;
          value = symbol == 16 ? lengths[filled - 1] : 0;
          times = symbol == 16 ? 3 + png_bits(s, 2) : symbol == 17 ? 3 + png_bits(s, 3) : 11 + png_bits(s, 7);
        }
        if (filled + times > literal_count + distance_count) return 0;
        while (times-- > 0) lengths[filled++] = (unsigned char)value;
      }
      unsigned char distance_lengths[30];
      memcpy(distance_lengths, lengths + literal_count, (size_t)distance_count);
      png_make_code(&literals, lengths, literal_count);
      png_make_code(&distances, distance_lengths, distance_count);
    } else {
      return 0;
    }
    if (!png_block(s, &literals, &distances)) return 0;
  }
  return 1;
}

static int png_paeth(int a, int b, int c) {
  const int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

static uint32_t png_u32(const unsigned char* p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Undoes the filters in place, row by row; rows move up by their filter bytes. */
static int png_unfilter(unsigned char* data, int32_t height, size_t row, size_t step) {
  for (int32_t y = 0; y < height; ++y) {
    const unsigned char filter = data[(size_t)y * (row + 1)];
    const unsigned char* from = data + (size_t)y * (row + 1) + 1;
    unsigned char* to = data + (size_t)y * row;
    const unsigned char* up = y ? to - row : NULL;
    if (filter > 4) return 0;
    for (size_t x = 0; x < row; ++x) {
      const int a = x >= step ? to[x - step] : 0, b = up ? up[x] : 0, c = up && x >= step ? up[x - step] : 0;
      const int add = filter == 1 ? a : filter == 2 ? b : filter == 3 ? (a + b) / 2 : filter == 4 ? png_paeth(a, b, c) : 0;
      to[x] = (unsigned char)(from[x] + add);
    }
  }
  return 1;
}

/* The bytes of all IDAT chunks, one after the other; returns how many there are. */
static size_t png_gather(const unsigned char* bytes, size_t size, unsigned char* packed) {
  size_t gathered = 0;
  for (size_t at = 8; size - at >= 12;) {
    const size_t length = png_u32(bytes + at);
    if (length > size - at - 12) break;
    if (memcmp(bytes + at + 4, "IDAT", 4) == 0) {
      memcpy(packed + gathered, bytes + at + 8, length);
      gathered += length;
    }
    at += length + 12;
  }
  return gathered;
}

/* Decodes a whole file; `packed` has room for as many bytes. */
static const char* png_decode(const unsigned char* bytes, size_t size, unsigned char* packed, picture* image) {
  static const unsigned char kSignature[] = {137, 80, 78, 71, 13, 10, 26, 10};
  if (size <= 33 || memcmp(bytes, kSignature, 8) != 0) return "it is no PNG file";
  const uint32_t width = png_u32(bytes + 16), height = png_u32(bytes + 20);
  const int colour = bytes[25];
  const int channels = colour == 0 ? 1 : colour == 4 ? 2 : colour == 2 ? 3 : colour == 6 ? 4 : 0;
  if (bytes[24] != 8 || bytes[28] != 0 || channels == 0)
    return "without libpng, only 8-bit grey and RGB PNG files that are not interlaced can be read";
  if (!picture_fits(width, height)) return "it is too large";
  const size_t row = (size_t)width * (size_t)channels;
  png_stream s;
  memset(&s, 0, sizeof s);
  s.in = packed;
  s.size = png_gather(bytes, size, packed);
  s.room = (row + 1) * height;
  s.out = (unsigned char*)malloc(s.room);
  if (s.out == NULL) return "there is not enough memory";
  if (s.size <= 2 || !png_inflate(&s) || s.length != s.room || !png_unfilter(s.out, (int32_t)height, row, (size_t)channels)) {
    free(s.out);
    return "it is damaged";
  }
  image->pixels = s.out;
  image->type = CAPSEDGE_UINT8;
  image->width = (int32_t)width;
  image->height = (int32_t)height;
  image->channels = channels;
  return NULL;
}

static const char* picture_decode(FILE* file, picture* image) {
  fseek(file, 0, SEEK_END);
  const long end = ftell(file);
  rewind(file);
  const size_t size = end > 0 && end <= 1 << 27 ? (size_t)end : 0;
  unsigned char* const bytes = (unsigned char*)malloc(size + 1);
  unsigned char* const packed = (unsigned char*)malloc(size + 1);
  const char* error = "the file cannot be read";
  if (bytes && packed && fread(bytes, 1, size, file) == size) error = png_decode(bytes, size, packed, image);
  free(bytes);
  free(packed);
  return error;
}

#endif
