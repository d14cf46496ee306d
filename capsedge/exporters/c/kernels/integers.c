/* Arithmetic of integers for every operand: results wrap, and a number divided by zero is zero. */
#define CAPS_INTEGERS(n)                                                                                       \
  CAPS_INLINE int##n##_t caps_add_int##n(int##n##_t a, int##n##_t b) {                                         \
    return (int##n##_t)((uint##n##_t)a + (uint##n##_t)b);                                                      \
  }                                                                                                            \
  CAPS_INLINE int##n##_t caps_sub_int##n(int##n##_t a, int##n##_t b) {                                         \
    return (int##n##_t)((uint##n##_t)a - (uint##n##_t)b);                                                      \
  }                                                                                                            \
  CAPS_INLINE int##n##_t caps_mul_int##n(int##n##_t a, int##n##_t b) {                                         \
    return (int##n##_t)((uint##n##_t)a * (uint##n##_t)b);                                                      \
  }                                                                                                            \
  CAPS_INLINE int##n##_t caps_div_int##n(int##n##_t a, int##n##_t b) {                                         \
    return b == 0 ? 0 : b == -1 ? caps_sub_int##n(0, a) : a / b;                                               \
  }
CAPS_INTEGERS(32)
CAPS_INTEGERS(64)
