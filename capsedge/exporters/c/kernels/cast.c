/* The integer of a float, without its fraction: the nearest in range, and 0 of NaN. */
#define CAPS_CAST(name, least, most, end)                                                                      \
  CAPS_INLINE name##_t caps_cast_##name(float x) {                                                             \
    return x != x ? 0 : x >= (end) ? (most) : x <= (least) ? (name##_t)(least) : (name##_t)x;                  \
  }
CAPS_CAST(int8, -128.0f, 127, 128.0f)
CAPS_CAST(uint8, 0.0f, 255, 256.0f)
CAPS_CAST(int32, -2147483648.0f, 2147483647, 2147483648.0f)
CAPS_CAST(int64, -9223372036854775808.0f, 9223372036854775807, 9223372036854775808.0f)
