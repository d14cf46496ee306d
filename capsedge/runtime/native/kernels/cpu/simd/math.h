// exp, log and 1/sqrt on vectors. The bounds were measured over every 97th float of the stated range at every level
// (`capsedge_native_tests math 97`; tests/native/test_builds.py runs a part of it).
#pragma once

#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// 2^n and the polynomial: exp y = p · 2^n for finite y, n is returned as the exponent bits of a float.
struct Power {
  V p;
  VI exponent;
};
CAPSEDGE_INLINE Power power(V y) {
  // y = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 · 2^23 leaves n in the low bits; ln 2 in two parts, the
  // first with so few bits that n times it is exact.
  const V shifter = splat(12582912.0f);
  const V shifted = madd(y, splat(1.44269504088896341f), shifter);
  const V n = shifted - shifter;
  V r = madd(n, splat(-0.693359375f), y);
  r = madd(n, splat(2.12194440e-4f), r);
  V p = splat(1.9875691500e-4f);
  p = madd(p, r, splat(1.3981999507e-3f));
  p = madd(p, r, splat(8.3334519073e-3f));
  p = madd(p, r, splat(4.1665795894e-2f));
  p = madd(p, r, splat(1.6666665459e-1f));
  p = madd(p, r, splat(5.0000001201e-1f));
  p = madd(p, r * r, r) + 1.0f;
  return {p, reinterpret_cast<VI>(reinterpret_cast<VU>(shifted) - reinterpret_cast<VU>(shifter))};
}

// 2^n for -127 < n < 128; undefined for other n.
CAPSEDGE_INLINE V two_to(VI n) { return reinterpret_cast<V>((reinterpret_cast<VU>(n) + 127u) << 23); }

// Below this, the result would not be a normal number.
constexpr float kExpLow = -87.33654f;

// Relative error at most 1.2e-7 for -87.3 <= x <= 88.7; zero below, where the result would be subnormal;
// infinity above; NaN stays NaN.
CAPSEDGE_INLINE V exp(V x) {
  const V low = splat(kExpLow), high = splat(88.72283f);
  V y = x < low ? low : x;
  y = y > high ? high : y;
  const Power e = power(y);
  // 2^n in two factors: n reaches 128, which one float's exponent does not.
  const VI half = e.exponent >> 1;
  V result = e.p * two_to(half) * two_to(e.exponent - half);
  result = x < low ? V{} : result;
  return x > high ? splat(__builtin_inff()) : result;
}

// The same, only for x <= 0.
CAPSEDGE_INLINE V exp_of_negative(V x) {
  const V low = splat(kExpLow);
  const Power e = power(x < low ? low : x);
  const V result = e.p * two_to(e.exponent);
  return x < low ? V{} : result;
}

// For normal positive numbers: absolute error at most 1.2e-7 where |ln x| < 1, relative at most 1.2e-7 elsewhere.
// Infinity and NaN are unchanged; for other numbers, the result is some finite number.
CAPSEDGE_INLINE V log(V x) {
  // x = 2^e m with sqrt(½) <= m < sqrt(2).
  const VU bits = reinterpret_cast<VU>(x) - 0x3f3504f3u;
  const VI e = reinterpret_cast<VI>(bits) >> 23;
  const V m = reinterpret_cast<V>((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  V p = splat(7.0376836292e-2f);
  p = madd(p, m, splat(-1.1514610310e-1f));
  p = madd(p, m, splat(1.1676998740e-1f));
  p = madd(p, m, splat(-1.2420140846e-1f));
  p = madd(p, m, splat(1.4249322787e-1f));
  p = madd(p, m, splat(-1.6668057665e-1f));
  p = madd(p, m, splat(2.0000714765e-1f));
  p = madd(p, m, splat(-2.4999993993e-1f));
  p = madd(p, m, splat(3.3333331174e-1f));
  const V square = m * m;
  const V n = __builtin_convertvector(e, V);
  V y = p * m * square;
  y = madd(n, splat(-2.12194440e-4f), y);
  y = madd(splat(-0.5f), square, y);
  y = madd(n, splat(0.693359375f), m + y);
  return x < splat(__builtin_inff()) ? y : x;
}

// Relative error at most 1.2e-7: one divided by the exact root.
CAPSEDGE_INLINE V rsqrt(V x) { return 1.0f / sqrt(x); }

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
