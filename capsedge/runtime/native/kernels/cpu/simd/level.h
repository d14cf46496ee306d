// The interface of one SIMD level. It contains only plain data: every level's translation unit includes this header,
// and a function defined in a shared header could be compiled with one level's instructions and linked into all.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace capsedge {

// A child of a window: the index of its capsule from the window's first, the index of its weight, its position in the
// window.
struct Child {
  int32_t capsule;
  int32_t weight;
  int32_t row;
  int32_t column;
};

// How votes are computed: V[r][l][m] = Σ_k pose[r][k] · weight[k][l][m], for every child.
struct Votes {
  const Child* children;
  const float* weight;   // packed, see below
  const int8_t* bytes;   // the weight in INT8, packed alike; or null
  const float* scale;    // of INT8 weights, [column][parent], padded with zeros to whole strips
  int64_t weight_size;   // elements of one packed weight
  int pose_size;         // floats from one child's pose to the next
  int rows;              // of a pose matrix; 1 for a vector
  int inner;             // K
  int columns;           // L
  int pose_elements;     // H = rows · columns, of one vote
  int parents;           // M
  int lanes;             // M rounded up to whole vectors: stride of queries, sums and statistics
  int64_t tile_stride;   // floats of one child's votes in the tile; of_all: twice, as rows and across (shared_votes.h)
  bool one_weight;       // the same weight for all children, which are consecutive
  bool given;            // votes are the poses, [parents][pose elements] of each child
  bool of_all;           // given votes are [pose elements] of each child, the same for all parents
  const float* bias;     // added to every vote: [columns][parents] of each child, padded with zeros to whole strips; or null
  int64_t bias_stride;   // floats from one child's to the next, 0 if all have the same
  int bundle;            // children in one vector (bundle.h; "child" then means a bundle), or 1
};

// Children whose votes are in the tile together; floats that vector reads may go beyond the end.
enum { kBlock = 8, kSlack = 16 };

// A packed weight is read from front to back: its columns·parents lanes in strips of kStrip, each strip with one row
// for every inner index. The last strip is half as wide if that is enough, and is padded with zeros.
enum { kStrip = 32 };

// One pass of logit-free routing over a range of children: sums[u][h][m] = Σ_i c_ium V_iumh with c = softmax over m of
// prior_im + scale · Σ_h query_uhm V_iumh. If the softmax is over the children i instead, the sums are weighted by exp
// (logit - top) and followed by mass [lanes], Σ_i exp (logit - top), and top [lanes]. A mask multiplies the couplings,
// but does not affect the mass.
struct RoutingPass {
  Votes votes;
  int first, last;       // children
  int units;             // images or positions that share the weights; more than one only with rows == 1
  const float* pose;     // of the first unit's window
  int64_t unit_stride;   // floats from one unit's window to the next
  const float* query;    // [units][pose elements][lanes], or null: no agreement yet
  float scale;
  const float* prior;    // of the first unit, [children][parents] followed by kSlack floats; or null
  int64_t prior_stride;  // floats from one unit's to the next; 0 if all have the same
  const float* mask;     // of the first unit, [children], or null
  int64_t mask_stride;
  bool leaky;
  const float* bias;     // like prior, but added to the couplings, and only with a query; or null
  float* kept;           // votes of all children, [child][tile_stride], or null: made again each pass
  bool have_kept;
  int64_t sum_stride;    // floats from one unit's sums, or query, to the next
  float* sums;           // [units][pose elements][lanes], overwritten
  float* scratch;        // scratch_floats()
};

// Converts the sum of a pass to the pose and to the query of the next pass; all [pose elements][lanes].
struct AgreementFinish {
  int pose_elements, lanes;
  const float* bias;
  bool over_children;    // mass and top follow the sum
  bool elementwise;      // each element is squashed by itself
  bool normalize;        // the query is the sum divided by its norm, not the pose
  bool replace;          // the query is replaced by it instead of accumulating
  float epsilon;
};

// Weighted moments of votes about their weighted mean: mass [lanes], mean and squares [pose elements][lanes].
struct Moments {
  float* mass;
  float* mean;
  float* squares;
};

// Values added to the votes of the children at each position of the grid, in some elements of the pose.
struct Additions {
  const float* values;   // [row][column][count]
  const int32_t* elements;
  int count;
  int width;             // of the grid
};

// E-step (left out in the first pass) and M-step of EM routing over a range of children of one window.
struct EmPass {
  Votes votes;
  int first, last;
  const float* pose;
  const float* activation;
  bool first_pass;
  float first_divisor;   // in it, responsibilities are 1 divided by this
  const float* mean;     // [pose elements][lanes]
  const float* precision;  // 1/σ², likewise
  const float* offset;   // [lanes]: ln a_j - ½ Σ_h ln σ²_jh
  Additions additions;
  int row0, column0;     // place of the window in the grid
  float* kept;           // votes of all children, [child][tile_stride], or null: made again each pass
  Moments moments;       // overwritten
  float* bundle_pose;    // scratch for the poses of one bundle, [pose size][bundle]
  float* scratch;        // scratch_floats()
};

// The part of one M-step after its sums.
struct EmFinish {
  int pose_elements, lanes;
  Moments moments;
  const float* beta_u;   // [lanes]
  const float* beta_a;   // [lanes]
  float inverse_temperature, epsilon;
  float variance_epsilon, activation_epsilon, cost_epsilon;
  float* mean;
  float* precision;
  float* offset;
  float* activation;     // [lanes]
};

// Votes summed over a window with weights that already include the equal couplings: out[row][lane], a matrix product
// that reads its left side in place. `rows` of linear() point at the first element that each row reads.
struct LinearPass {
  const float* weight;   // strips of kStrip lanes (the last may be half), each with a row per line, child, inner index
  int lines;             // of the window
  int line_children;     // consecutive in memory
  int64_t line_stride;   // floats
  int64_t pose_size;     // floats from one child to the next
  int inner;
  int64_t lanes;
  int64_t out_stride;    // lanes rounded up to half a strip
};

// Sums of a convolution of 8-bit integers: sums[position][channel] = start + Σ x · weight over the segments, the parts
// of a window that are contiguous in memory.
struct ConvPass {
  const void* input;       // channels last: uint8_t if dot is 4, int16_t if it is 2
  const int32_t* windows;  // where each position's window begins, in elements
  const int32_t* offsets;  // where each segment begins in a window
  int positions, segments;
  int length;              // elements of a segment, a multiple of dot; elements read beyond the actual ones have weight 0
  const int8_t* weight;    // [segment][length / dot][channels][dot]; 4 KiB behind it may be read
  const int8_t* ahead;     // weights that will be needed next
  const int32_t* start;    // [channels], or null: what the sums hold
  int32_t* sums;           // [positions][channels]
};
struct ConvKernels {
  int dot;                 // products added per lane at a time
  int positions;           // processed together
  int channels;            // likewise
  void (*convolve)(const ConvPass& pass);
  // y = round(float(sum) · factor) + zero point, ties to even, within 0..255; all [positions][channels].
  void (*requantize)(const int32_t* sums, const float* factors, int32_t zero_point, int positions, uint8_t* y);
};

// A part of a convolution's window: taps that have the convolution's stride between them.
struct FilterPiece {
  int rows, columns;     // taps
  int64_t start;         // floats from a tile's first input to the piece's
  int64_t first;         // its first position: it has (rows + tile - 1)(columns + tile - 1)
};
// A convolution by minimal filtering in tiles of tile x tile outputs.
struct FilterPass {
  int tile;
  const FilterPiece* pieces;
  int count;
  int64_t row_step, column_step;  // floats between inputs of neighbouring taps
  int64_t tile_step;              // floats between the first inputs of neighbouring tiles
  int64_t tile_stride, position_stride;  // floats from one tile, or position, to the next in what is written or read
};
struct FilterKernels {
  int lanes;             // output channels of a strip
  // Transforms a vector of input channels, [row][column][width], of neighbouring tiles.
  void (*input)(const FilterPass& pass, const float* lines, int tiles, float* to);
  // out[row][lanes] = Σ_c x[row][c] weight[c][lanes]; `next` are the weights that are needed next.
  void (*products)(const float* x, int64_t stride, int rows, const float* weight, int64_t channels, const float* next,
                   float* out);
  // y[tile][row][column][lanes] += the transformed products of neighbouring tiles in the first piece.
  void (*output)(const FilterPass& pass, const float* products, int tiles, float* y);
};

struct Level {
  const char* name;
  int width;             // floats in a vector
  void (*widen)(const uint16_t* x, float* y, int64_t count);
  void (*narrow)(const float* x, uint16_t* y, int64_t count);
  // x, y: [rows][size], or [outer][size][inner] with the pose on the middle axis.
  void (*squash_rows)(const float* x, float* y, int64_t rows, int64_t size, float epsilon);
  void (*squash_planes)(const float* x, float* y, int64_t outer, int64_t size, int64_t inner, float epsilon);
  void (*route)(const RoutingPass& pass);
  void (*route_over_children)(const RoutingPass& pass);
  // Adds one unit's sums of other children to `sums`.
  void (*merge_over_children)(int pose_elements, int lanes, const float* other, float* sums);
  void (*em)(const EmPass& pass);
  void (*em_merge)(int pose_elements, int lanes, const Moments& into, const Moments& from);
  void (*em_finish)(const EmFinish& finish);
  void (*em_fold)(int pose_elements, int parents, int lanes, const Moments& from, const Moments& to);
  void (*em_spread)(int rows, int parents, int lanes, const float* from, float* to);
  void (*add)(const float* x, float* y, int64_t count);  // y += x, count a multiple of the width
  void (*finish_agreement)(const AgreementFinish& finish, const float* sum, float* pose, float* query);
  void (*finish_norm)(const float* sum, const float* scale, const float* bias, int pose_elements, int lanes,
                      float epsilon, float* pose);
  // sum and pose are [pose elements][lanes].
  void (*finish_exponential)(const float* sum, int pose_elements, int lanes, float epsilon, float* pose);
  int linear_rows;       // rows that linear() computes together
  void (*linear)(const LinearPass& pass, const float* const* rows, int count, float* out);
  // Layer normalization over rows of `size`; x and y may be the same.
  void (*normalize_rows)(const float* x, float* y, int64_t rows, int64_t size, const float* scale, const float* bias,
                         float epsilon);
  ConvKernels conv;
  FilterKernels filter;
  // For tests of the stated error bounds: y = f(x), count a multiple of the width.
  void (*exp)(const float* x, float* y, int64_t count);
  void (*log)(const float* x, float* y, int64_t count);
  void (*rsqrt)(const float* x, float* y, int64_t count);
};

}  // namespace capsedge
