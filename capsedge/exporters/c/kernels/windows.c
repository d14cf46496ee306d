/* Windows of capsules on a map [height][width][types]; shared: one window over the map, one weight for all its cells. */
typedef struct {
  int height, width, types, parents, rows, k, l, kernel_h, kernel_w, stride_h, stride_w, out_h, out_w, shared;
} caps_windows;

/* The child i of a window, as a capsule of the map. */
CAPS_INLINE int caps_child(const caps_windows *c, int oy, int ox, int i) {
  const int width = c->shared ? c->width : c->kernel_w, cell = i / c->types;
  return ((oy * c->stride_h + cell / width) * c->width + ox * c->stride_w + cell % width) * c->types + i % c->types;
}
