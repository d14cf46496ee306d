// What each instruction does to the 32 lanes of a warp. Rounding is that of PTX where it is exact (.rn, .rm, .rz); the
// approximations (ex2, rcp, lg2) are the host's, which are closer than PTX asks for.
#include <immintrin.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "machine.h"

namespace ptx {
namespace {

// Lanes that are not active keep what they have, unless nobody reads it.
template <typename D, typename F>
inline __attribute__((always_inline)) void fill(const Instruction& i, Warp& w, uint32_t target, F value) {
  D* const d = w.to<D>(target);
  if (w.mask == kFull || i.local) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) d[l] = value(l);
  } else {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) {
      const D made = value(l);
      d[l] = w.active[l] ? made : d[l];
    }
  }
}

template <typename D, typename A, typename F>
void unary(const Instruction& i, Warp& w) {
  const A* const a = w.at<A>(i.a);
  fill<D>(i, w, i.d[0], [=](int l) { return static_cast<D>(F()(a[l])); });
}
template <typename D, typename A, typename F>
void binary(const Instruction& i, Warp& w) {
  const A *const a = w.at<A>(i.a), *const b = w.at<A>(i.b);
  fill<D>(i, w, i.d[0], [=](int l) { return static_cast<D>(F()(a[l], b[l])); });
}
template <typename D, typename F>
void ternary(const Instruction& i, Warp& w) {
  const D *const a = w.at<D>(i.a), *const b = w.at<D>(i.b), *const c = w.at<D>(i.c);
  fill<D>(i, w, i.d[0], [=](int l) { return static_cast<D>(F()(a[l], b[l], c[l])); });
}
template <typename D>
void shift(const Instruction& i, Warp& w, bool left) {
  const D* const a = w.at<D>(i.a);
  const uint32_t* const b = w.at<uint32_t>(i.b);
  constexpr uint32_t kBits = 8 * sizeof(D);
  if (left)
    fill<D>(i, w, i.d[0], [=](int l) { return b[l] < kBits ? static_cast<D>(a[l] << b[l]) : D{0}; });
  else
    fill<D>(i, w, i.d[0], [=](int l) { return static_cast<D>(a[l] >> (b[l] < kBits ? b[l] : kBits - 1) >> (std::is_unsigned_v<D> && b[l] >= kBits)); });
}
template <typename D>
void shift_left(const Instruction& i, Warp& w) { shift<D>(i, w, true); }
template <typename D>
void shift_right(const Instruction& i, Warp& w) { shift<D>(i, w, false); }

// A conversion reads as much of its register as its type has: S is the register, A what is read of it.
template <typename D, typename S, typename A>
void convert(const Instruction& i, Warp& w) {
  const S* const a = w.at<S>(i.a);
  fill<D>(i, w, i.d[0], [=](int l) { return static_cast<D>(static_cast<A>(a[l])); });
}

// Predicates: a bit for each lane.
inline uint32_t predicate(const Warp& w, uint32_t number) {
  return number & kConstant ? (number & 1 ? kFull : 0) : w.predicates[number];
}
inline void set_predicate(Warp& w, uint32_t number, uint32_t lanes) {
  w.predicates[number] = (w.predicates[number] & ~w.mask) | (lanes & w.mask);
}
inline uint32_t bits_of(const int32_t* lanes) {
  uint32_t bits = 0;
  for (int k = 0; k < 4; ++k) {
    const __m256 eight = _mm256_loadu_ps(reinterpret_cast<const float*>(lanes + 8 * k));
    bits |= static_cast<uint32_t>(_mm256_movemask_ps(eight)) << (8 * k);
  }
  return bits;
}
template <typename A, typename F>
void compare(const Instruction& i, Warp& w) {
  const A *const a = w.at<A>(i.a), *const b = w.at<A>(i.b);
  int32_t lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = F()(a[l], b[l]) ? -1 : 0;
  set_predicate(w, i.d[0], bits_of(lanes));
}
template <typename F>
void combine(const Instruction& i, Warp& w) {
  set_predicate(w, i.d[0], F()(predicate(w, i.a), predicate(w, i.b)));
}
void invert(const Instruction& i, Warp& w) { set_predicate(w, i.d[0], ~predicate(w, i.a)); }
void move_predicate(const Instruction& i, Warp& w) { set_predicate(w, i.d[0], predicate(w, i.a)); }
template <typename D>
void select(const Instruction& i, Warp& w) {
  const D *const a = w.at<D>(i.a), *const b = w.at<D>(i.b);
  const uint32_t p = predicate(w, i.c);
  fill<D>(i, w, i.d[0], [=](int l) { return p >> l & 1 ? a[l] : b[l]; });
}

// Arithmetic.
struct Add { template <typename T> T operator()(T a, T b) const { return a + b; } };
struct Sub { template <typename T> T operator()(T a, T b) const { return a - b; } };
struct Mul { template <typename T> T operator()(T a, T b) const { return a * b; } };
struct And { template <typename T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <typename T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <typename T> T operator()(T a, T b) const { return a ^ b; } };
struct Not { template <typename T> T operator()(T a) const { return ~a; } };
struct Neg { template <typename T> T operator()(T a) const { return T{0} - a; } };
struct NegFloat { float operator()(float a) const { return -a; } };
struct Same { template <typename T> T operator()(T a) const { return a; } };
struct Abs { float operator()(float a) const { return fabsf(a); } };
struct Least { template <typename T> T operator()(T a, T b) const { return a < b ? a : b; } };
struct Most { template <typename T> T operator()(T a, T b) const { return a > b ? a : b; } };
// Of a NaN and a number, the number.
struct LeastFloat { float operator()(float a, float b) const { return a < b || b != b ? a : b; } };
struct MostFloat { float operator()(float a, float b) const { return a > b || b != b ? a : b; } };
struct Quotient { template <typename T> T operator()(T a, T b) const { return a / b; } };
struct MulAdd { template <typename T> T operator()(T a, T b, T c) const { return a * b + c; } };
struct Fma { float operator()(float a, float b, float c) const { return __builtin_fmaf(a, b, c); } };
struct Root { float operator()(float a) const { return __builtin_sqrtf(a); } };
struct Reciprocal { float operator()(float a) const { return 1.0f / a; } };
inline float flushed(float a) { return fabsf(a) < std::numeric_limits<float>::min() ? copysignf(0.0f, a) : a; }
struct FlushedReciprocal { float operator()(float a) const { return flushed(1.0f / flushed(a)); } };
struct Exp2 { float operator()(float a) const { return exp2f(a); } };
struct FlushedExp2 { float operator()(float a) const { return flushed(exp2f(flushed(a))); } };
struct Log2 { float operator()(float a) const { return log2f(a); } };
struct Rounded { float operator()(float a) const { return __builtin_rintf(a); } };
struct Saturated { float operator()(float a) const { return a > 1.0f ? 1.0f : a > 0.0f ? a : 0.0f; } };
template <typename W>
struct Wide { template <typename T> W operator()(T a, T b) const { return static_cast<W>(a) * static_cast<W>(b); } };

// Whole numbers; what a division by zero gives is not said, and here it is all ones, as NVIDIA's code does.
template <typename T>
struct Divide {
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a)) : static_cast<T>(a / b);
  }
};
template <typename T>
struct Rest {
  T operator()(T a, T b) const { return b == 0 ? a : std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b); }
};

// Rounded down or towards zero: with the processor's rounding set so.
template <int MODE, typename F>
void rounded(const Instruction& i, Warp& w) {
  std::fesetround(MODE);
  F::run(i, w);
  std::fesetround(FE_TONEAREST);
}
struct RunFma { static __attribute__((noinline)) void run(const Instruction& i, Warp& w) { ternary<float, Fma>(i, w); } };
struct RunAdd { static __attribute__((noinline)) void run(const Instruction& i, Warp& w) { binary<float, float, Add>(i, w); } };

void widen_half(const Instruction& i, Warp& w) {
  const uint16_t* const a = w.at<uint16_t>(i.a);
  float made[kLanes];
  for (int k = 0; k < kLanes; k += 8)
    _mm256_storeu_ps(made + k, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + k))));
  fill<float>(i, w, i.d[0], [&](int l) { return made[l]; });
}
void narrow_half(const Instruction& i, Warp& w) {
  const float* const a = w.at<float>(i.a);
  uint16_t made[kLanes];
  for (int k = 0; k < kLanes; k += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(made + k), _mm256_cvtps_ph(_mm256_loadu_ps(a + k), _MM_FROUND_TO_NEAREST_INT));
  fill<uint16_t>(i, w, i.d[0], [&](int l) { return made[l]; });
}

// A field of bits with its sign, from one place on, of one length.
struct Field {
  int32_t operator()(int32_t a, int32_t from, int32_t length) const {
    const int first = from & 255, bits = length & 255;
    if (bits == 0) return 0;
    const int64_t moved = static_cast<int64_t>(a) >> (first < 32 ? first : 31);
    return bits < 32 ? static_cast<int32_t>(moved << (64 - bits) >> (64 - bits)) : static_cast<int32_t>(moved);
  }
};
struct Ones { uint32_t operator()(uint32_t a) const { return static_cast<uint32_t>(__builtin_popcount(a)); } };

// Comparisons; the unordered ones hold for NaN.
struct Eq { template <typename T> bool operator()(T a, T b) const { return a == b; } };
struct Ne { template <typename T> bool operator()(T a, T b) const { return a != b; } };
struct Lt { template <typename T> bool operator()(T a, T b) const { return a < b; } };
struct Le { template <typename T> bool operator()(T a, T b) const { return a <= b; } };
struct Gt { template <typename T> bool operator()(T a, T b) const { return a > b; } };
struct Ge { template <typename T> bool operator()(T a, T b) const { return a >= b; } };
struct OrderedNe { bool operator()(float a, float b) const { return a < b || a > b; } };
struct Numbers { bool operator()(float a, float b) const { return a == a && b == b; } };
struct NotNumbers { bool operator()(float a, float b) const { return a != a || b != b; } };
template <typename F>
struct Unordered { bool operator()(float a, float b) const { return a != a || b != b || F()(a, b); } };

// Where a thread is.
template <int64_t (*VALUE)(const Warp&, int)>
void special(const Instruction& i, Warp& w) {
  const Warp& own = w;
  fill<uint32_t>(i, w, i.d[0], [&](int l) { return static_cast<uint32_t>(VALUE(own, l)); });
}
int64_t tid(const Warp& w, int l) { return w.number * kLanes + l; }
int64_t ntid(const Warp& w, int) { return w.cta->launch->threads; }
int64_t ctaid_x(const Warp& w, int) { return w.cta->x; }
int64_t ctaid_y(const Warp& w, int) { return w.cta->y; }
int64_t nctaid_x(const Warp& w, int) { return w.cta->launch->grid.x; }
int64_t nctaid_y(const Warp& w, int) { return w.cta->launch->grid.y; }

void to_window(const Instruction& i, Warp& w) {
  const uint64_t* const a = w.at<uint64_t>(i.a);
  const uint64_t rank = static_cast<uint64_t>(w.cta->rank);
  fill<uint64_t>(i, w, i.d[0], [=](int l) { return in_window(rank, a[l]); });
}
void map_rank(const Instruction& i, Warp& w) {
  const uint64_t* const a = w.at<uint64_t>(i.a);
  const uint32_t* const b = w.at<uint32_t>(i.b);
  fill<uint64_t>(i, w, i.d[0], [=](int l) { return in_window(b[l], a[l] & 0xffffffffu); });
}

// All lanes of the warp are here (Meeting::kShuffle).
void butterfly(const Instruction& i, Warp& w) {
  const uint32_t *const a = w.at<uint32_t>(i.a), *const b = w.at<uint32_t>(i.b), *const c = w.at<uint32_t>(i.c);
  const uint32_t* const members = w.at<uint32_t>(i.d[3]);
  uint32_t made[kLanes], inside = 0;
  for (int l = 0; l < kLanes; ++l) {
    if (members[l] != kFull) fault(i, w, l, kLaunchFailure, "a shuffle with another mask than all lanes");
    const int most = static_cast<int>((static_cast<uint32_t>(l) & c[l] >> 8) | (c[l] & 31 & ~(c[l] >> 8)));
    const int from = l ^ static_cast<int>(b[l] & 31);
    inside |= static_cast<uint32_t>(from <= most) << l;
    made[l] = a[from <= most ? from : l];
  }
  fill<uint32_t>(i, w, i.d[0], [&](int l) { return made[l]; });
  set_predicate(w, i.d[1], inside);
}

// Memory. M is what lies there, R the register.
using Accessor = char* (*)(const Instruction&, Warp&, int, uint64_t, int, bool);

template <typename A>
bool addresses_of(const Instruction& i, Warp& w, uint32_t operand, uint64_t* to) {
  const A* const a = w.at<A>(operand);
  for (int l = 0; l < kLanes; ++l) to[l] = static_cast<uint64_t>(a[l]) + static_cast<uint64_t>(i.offset);
  const int first = __builtin_ctz(w.mask);
  int32_t other = 0;
  for (int l = 0; l < kLanes; ++l) other |= w.active[l] & static_cast<int32_t>(to[l] != to[first]);
  return !other;
}

void count(Warp& w, const uint64_t* at, int size, bool same, Accessor access) {
  if (access == shared_access || (access == generic_access && at[__builtin_ctz(w.mask)] & kWindow)) count_turns(w, at, size, same);
  else count_sectors(w, at, same);
}

template <typename M, typename R, int V, typename A, Accessor ACCESS>
void load(const Instruction& i, Warp& w) {
  constexpr int kSize = V * static_cast<int>(sizeof(M));
  uint64_t at[kLanes];
  const bool same = addresses_of<A>(i, w, i.a, at);
  count(w, at, kSize, same, ACCESS);
  R made[V][kLanes];
  const int first = __builtin_ctz(w.mask), last = 31 - __builtin_clz(w.mask);
  const char* memory = nullptr;
  for (int l = first; l <= last; ++l) {
    if (!(w.mask >> l & 1)) continue;
    // Two readers are as good as many.
    if (!same || l == first || l == last) memory = ACCESS(i, w, l, at[l], kSize, false);
    for (int v = 0; v < V; ++v) {
      M value;
      std::memcpy(&value, memory + v * sizeof(M), sizeof(M));
      made[v][l] = static_cast<R>(value);
    }
  }
  for (int v = 0; v < V; ++v) fill<R>(i, w, i.d[v], [&](int l) { return made[v][l]; });
}
template <typename M, typename R, int V, typename A, Accessor ACCESS>
void store(const Instruction& i, Warp& w) {
  constexpr int kSize = V * static_cast<int>(sizeof(M));
  uint64_t at[kLanes];
  count(w, at, kSize, addresses_of<A>(i, w, i.a, at), ACCESS);
  for (int l = 0; l < kLanes; ++l) {
    if (!(w.mask >> l & 1)) continue;
    char* const memory = ACCESS(i, w, l, at[l], kSize, true);
    for (int v = 0; v < V; ++v) {
      const M value = static_cast<M>(w.to<R>(i.d[v])[l]);
      std::memcpy(memory + v * sizeof(M), &value, sizeof(M));
    }
  }
}
template <typename M, typename R, int V>
void load_parameter(const Instruction& i, Warp& w) {
  uint64_t at[kLanes];
  addresses_of<uint64_t>(i, w, i.a, at);
  const std::vector<char>& arguments = w.cta->launch->arguments;
  R made[V][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    if (!(w.mask >> l & 1)) continue;
    if (at[l] + V * sizeof(M) > arguments.size() || at[l] % (V * sizeof(M)))
      fault(i, w, l, kIllegalAddress, "outside of the kernel's parameters, or misaligned");
    for (int v = 0; v < V; ++v) {
      M value;
      std::memcpy(&value, arguments.data() + at[l] + v * sizeof(M), sizeof(M));
      made[v][l] = static_cast<R>(value);
    }
  }
  for (int v = 0; v < V; ++v) fill<R>(i, w, i.d[v], [&](int l) { return made[v][l]; });
}

void copy_sixteen(const Instruction& i, Warp& w) {
  uint64_t to[kLanes], from[kLanes];
  const bool same_to = addresses_of<uint32_t>(i, w, i.a, to), same_from = addresses_of<uint64_t>(i, w, i.b, from);
  count_sectors(w, from, same_from);
  count_turns(w, to, 16, same_to);
  for (int l = 0; l < kLanes; ++l)
    if (w.mask >> l & 1) start_copy(i, w, l, to[l], from[l]);
}
void nothing(const Instruction&, Warp&) {}

// The table. Letters as in Operation; behind a colon, the classes of registers that a form is for.
using Table = std::unordered_map<std::string, Operation>;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

template <typename M, typename R, int N>
void memory_form(Table& t, const std::string& type, const std::string& p) {
  t["ld.param" + type] = {load_parameter<M, R, N>, p + "[d", Kind::kMove};
  t["ld.global" + type] = {load<M, R, N, u64, global_access>, p + "[d", Kind::kLoad};
  t["ld.shared" + type] = {load<M, R, N, u32, shared_access>, p + "[w", Kind::kLoad};
  t["ld" + type] = {load<M, R, N, u64, generic_access>, p + "[d", Kind::kLoad};
  t["st.global" + type] = {store<M, R, N, u64, global_access>, "[d" + p, Kind::kStore};
  t["st.shared" + type] = {store<M, R, N, u32, shared_access>, "[w" + p, Kind::kStore};
}

template <typename M, typename R>
void memory_forms(Table& t, const std::string& type, const std::string& target, const std::string& p) {
  memory_form<M, R, 1>(t, type + target, p);
  memory_form<M, R, 2>(t, ".v2" + type + target, p);
  memory_form<M, R, 4>(t, ".v4" + type + target, p);
}

// What depends on the sign.
template <typename T>
void signed_or_not(Table& t, const std::string& type, const char* two, const char* shifted, const char* compared) {
  t["min" + type] = {binary<T, T, Least>, two, Kind::kInteger};
  t["max" + type] = {binary<T, T, Most>, two, Kind::kInteger};
  t["div" + type] = {binary<T, T, Divide<T>>, two, Kind::kDivision};
  t["rem" + type] = {binary<T, T, Rest<T>>, two, Kind::kDivision};
  t["shr" + type] = {shift_right<T>, shifted, Kind::kInteger};
  t["setp.lt" + type] = {compare<T, Lt>, compared, Kind::kInteger};
  t["setp.le" + type] = {compare<T, Le>, compared, Kind::kInteger};
  t["setp.gt" + type] = {compare<T, Gt>, compared, Kind::kInteger};
  t["setp.ge" + type] = {compare<T, Ge>, compared, Kind::kInteger};
}

template <typename S, typename U>
void whole_numbers(Table& t, const std::string& bits, const char* two, const char* one, const char* shifted, const char* compared) {
  const std::string s = ".s" + bits, u = ".u" + bits, b = ".b" + bits;
  for (const std::string& type : {s, u}) {
    t["add" + type] = {binary<U, U, Add>, two, Kind::kInteger};
    t["sub" + type] = {binary<U, U, Sub>, two, Kind::kInteger};
    t["mul.lo" + type] = {binary<U, U, Mul>, two, Kind::kInteger};
    t["mov" + type] = {unary<U, U, Same>, one, Kind::kMove};
    t["setp.eq" + type] = {compare<U, Eq>, compared, Kind::kInteger};
    t["setp.ne" + type] = {compare<U, Ne>, compared, Kind::kInteger};
  }
  signed_or_not<S>(t, s, two, shifted, compared);
  signed_or_not<U>(t, u, two, shifted, compared);
  t["neg" + s] = {unary<U, U, Neg>, one, Kind::kInteger};
  t["shl" + b] = {shift_left<U>, shifted, Kind::kInteger};
  t["and" + b] = {binary<U, U, And>, two, Kind::kInteger};
  t["or" + b] = {binary<U, U, Or>, two, Kind::kInteger};
  t["xor" + b] = {binary<U, U, Xor>, two, Kind::kInteger};
  t["not" + b] = {unary<U, U, Not>, one, Kind::kInteger};
  t["mov" + b] = {unary<U, U, Same>, one, Kind::kMove};
  t["setp.eq" + b] = {compare<U, Eq>, compared, Kind::kInteger};
  t["setp.ne" + b] = {compare<U, Ne>, compared, Kind::kInteger};
}

// What one FP32 unit does in one instruction counts as such; divisions and roots are several, and are counted by kind.
void floats(Table& t) {
  const Kind a = Kind::kArithmetic;
  t["add.f32"] = t["add.rn.f32"] = {binary<float, float, Add>, "www", a, true};
  t["sub.f32"] = t["sub.rn.f32"] = {binary<float, float, Sub>, "www", a, true};
  t["mul.f32"] = t["mul.rn.f32"] = {binary<float, float, Mul>, "www", a, true};
  t["fma.rn.f32"] = {ternary<float, Fma>, "wwww", a, true};
  t["fma.rm.f32"] = {rounded<FE_DOWNWARD, RunFma>, "wwww", a, true};
  t["add.rz.f32"] = {rounded<FE_TOWARDZERO, RunAdd>, "www", a, true};
  t["div.rn.f32"] = {binary<float, float, Quotient>, "www", a};
  t["sqrt.rn.f32"] = {unary<float, float, Root>, "ww", a};
  t["rcp.rn.f32"] = {unary<float, float, Reciprocal>, "ww", a};
  t["rcp.approx.ftz.f32"] = {unary<float, float, FlushedReciprocal>, "ww", a};
  t["ex2.approx.f32"] = {unary<float, float, Exp2>, "ww", a};
  t["ex2.approx.ftz.f32"] = {unary<float, float, FlushedExp2>, "ww", a};
  t["lg2.approx.f32"] = {unary<float, float, Log2>, "ww", a};
  t["min.f32"] = {binary<float, float, LeastFloat>, "www", a};
  t["max.f32"] = {binary<float, float, MostFloat>, "www", a};
  t["neg.f32"] = {unary<float, float, NegFloat>, "ww", a};
  t["abs.f32"] = {unary<float, float, Abs>, "ww", a};
  t["mov.f32"] = {unary<u32, u32, Same>, "ww", Kind::kMove};
  t["selp.f32"] = {select<u32>, "wwwp", Kind::kInteger};
  t["setp.eq.f32"] = {compare<float, Eq>, "pww", a};
  t["setp.ne.f32"] = {compare<float, OrderedNe>, "pww", a};
  t["setp.lt.f32"] = {compare<float, Lt>, "pww", a};
  t["setp.le.f32"] = {compare<float, Le>, "pww", a};
  t["setp.gt.f32"] = {compare<float, Gt>, "pww", a};
  t["setp.ge.f32"] = {compare<float, Ge>, "pww", a};
  t["setp.equ.f32"] = {compare<float, Unordered<Eq>>, "pww", a};
  t["setp.neu.f32"] = {compare<float, Ne>, "pww", a};
  t["setp.ltu.f32"] = {compare<float, Unordered<Lt>>, "pww", a};
  t["setp.leu.f32"] = {compare<float, Unordered<Le>>, "pww", a};
  t["setp.gtu.f32"] = {compare<float, Unordered<Gt>>, "pww", a};
  t["setp.geu.f32"] = {compare<float, Unordered<Ge>>, "pww", a};
  t["setp.num.f32"] = {compare<float, Numbers>, "pww", a};
  t["setp.nan.f32"] = {compare<float, NotNumbers>, "pww", a};
  t["cvt.rni.f32.f32"] = {unary<float, float, Rounded>, "ww", a};
  t["cvt.sat.f32.f32"] = {unary<float, float, Saturated>, "ww", a};
  t["cvt.f32.f16"] = {widen_half, "wh", a};
  t["cvt.rn.f16.f32"] = {narrow_half, "hw", a};
  t["cvt.rn.f32.s32"] = {convert<float, s32, s32>, "ww", a};
  t["cvt.rn.f32.u32"] = {convert<float, u32, u32>, "ww", a};
  t["cvt.rn.f32.s16"] = {convert<float, u16, s16>, "wh", a};
  t["cvt.rn.f32.s64"] = {convert<float, s64, s64>, "wd", a};
}

Table make_table() {
  Table t;
  floats(t);
  whole_numbers<s16, u16>(t, "16", "hhh", "hh", "hhw", "phh");
  whole_numbers<s32, u32>(t, "32", "www", "ww", "www", "pww");
  whole_numbers<s64, u64>(t, "64", "ddd", "dd", "ddw", "pdd");
  const Kind n = Kind::kInteger;
  t["mad.lo.s32"] = t["mad.lo.u32"] = {ternary<u32, MulAdd>, "wwww", n};
  t["mad.lo.s64"] = t["mad.lo.u64"] = {ternary<u64, MulAdd>, "dddd", n};
  t["mul.wide.s32"] = {binary<s64, s32, Wide<s64>>, "dww", n};
  t["mul.wide.u32"] = {binary<u64, u32, Wide<u64>>, "dww", n};
  for (const char* type : {"b32", "u32", "s32"}) t[std::string("selp.") + type] = {select<u32>, "wwwp", n};
  for (const char* type : {"b64", "u64", "s64"}) t[std::string("selp.") + type] = {select<u64>, "dddp", n};
  t["cvt.s64.s32:dw"] = {convert<s64, u32, s32>, "dw", n};
  t["cvt.s64.s32:dd"] = {convert<s64, u64, s32>, "dd", n};
  t["cvt.u64.u32:dw"] = {convert<u64, u32, u32>, "dw", n};
  t["cvt.u64.u32:dd"] = {convert<u64, u64, u32>, "dd", n};
  t["cvt.s32.s16"] = {convert<s32, u16, s16>, "wh", n};
  t["cvt.s32.s8:ww"] = {convert<s32, u32, int8_t>, "ww", n};
  t["cvt.s32.s8:wh"] = {convert<s32, u16, int8_t>, "wh", n};
  t["cvt.s64.s8:dd"] = {convert<s64, u64, int8_t>, "dd", n};
  t["cvt.s64.s8:dw"] = {convert<s64, u32, int8_t>, "dw", n};
  t["cvt.s64.s8:dh"] = {convert<s64, u16, int8_t>, "dh", n};
  t["cvt.s8.s32:hw"] = {convert<s16, u32, int8_t>, "hw", n};
  t["cvt.s8.s32:ww"] = {convert<s32, u32, int8_t>, "ww", n};
  t["cvt.u64.u16"] = {convert<u64, u16, u16>, "dh", n};
  t["mul.wide.s16"] = {binary<s32, s16, Wide<s32>>, "whh", n};
  t["bfe.s32"] = {ternary<s32, Field>, "wwww", n};
  t["popc.b32"] = {unary<u32, u32, Ones>, "ww", n};
  t["cvt.u32.u64"] = {convert<u32, u64, u32>, "wd", n};
  t["cvt.u16.u32"] = {convert<u16, u32, u16>, "hw", n};
  t["cvt.u32.u16"] = {convert<u32, u16, u16>, "wh", n};
  t["cvt.s16.s8"] = {convert<s16, u16, int8_t>, "hh", n};
  t["and.pred"] = {combine<And>, "ppp", n};
  t["or.pred"] = {combine<Or>, "ppp", n};
  t["xor.pred"] = {combine<Xor>, "ppp", n};
  t["not.pred"] = {invert, "pp", n};
  t["mov.pred"] = {move_predicate, "pp", Kind::kMove};
  t["mov.u32%tid.x"] = {special<tid>, "w", Kind::kMove};
  t["mov.u32%ntid.x"] = {special<ntid>, "w", Kind::kMove};
  t["mov.u32%ctaid.x"] = {special<ctaid_x>, "w", Kind::kMove};
  t["mov.u32%ctaid.y"] = {special<ctaid_y>, "w", Kind::kMove};
  t["mov.u32%nctaid.x"] = {special<nctaid_x>, "w", Kind::kMove};
  t["mov.u32%nctaid.y"] = {special<nctaid_y>, "w", Kind::kMove};
  t["cvta.to.global.u64"] = {unary<u64, u64, Same>, "dd", Kind::kMove};
  t["cvta.shared.u64"] = {to_window, "dd", n};
  t["mapa.u64"] = {map_rank, "ddw", n};
  t["shfl.sync.bfly.b32"] = {butterfly, "wwwww", Kind::kShuffle};
  t["cp.async.cg.shared.global"] = {copy_sixteen, "[w[d", Kind::kLoad};
  t["cp.async.commit_group"] = {nothing, "", Kind::kBarrier};
  t["cp.async.wait_group"] = {finish_copies, "w", Kind::kBarrier};
  for (const char* type : {".u32", ".f32"}) memory_forms<u32, u32>(t, type, "", "w");
  memory_forms<s32, u32>(t, ".s32", ":w", "w");
  memory_forms<s32, s64>(t, ".s32", ":d", "d");
  memory_forms<u32, u64>(t, ".u32", ":d", "d");
  memory_forms<u64, u64>(t, ".u64", "", "d");
  memory_forms<u16, u16>(t, ".u16", "", "h");
  memory_forms<uint8_t, u16>(t, ".u8", "", "h");
  memory_forms<int8_t, s16>(t, ".s8", "", "h");
  return t;
}

}  // namespace

const Operation* find_operation(const std::string& opcode, char target, char source) {
  static const Table table = make_table();
  for (const std::string& name : {opcode + ':' + target + source, opcode + ':' + target, opcode})
    if (const auto found = table.find(name); found != table.end()) return &found->second;
  return nullptr;
}

}  // namespace ptx
