// The stated error bounds of exp, log and 1/sqrt against the C library in double, over every `step`-th float.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simd/dispatch.h"
#include "run_case.h"

namespace {

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

using Function = void (*)(const float*, float*, int64_t);

// Largest error over floats from `low` to `high`, both of one sign, `low` nearer to zero; relative to the larger of
// `unit` and the exact value.
double worst_error(Function f, double (*exact)(double), float low, float high, double unit, unsigned step) {
  constexpr size_t kCount = 4096;
  std::vector<float> x(kCount), y(kCount);
  double worst = 0;
  const uint64_t end = to_bits(high);
  for (uint64_t bits = to_bits(low); bits <= end;) {
    for (float& e : x) {
      e = from_bits(static_cast<uint32_t>(bits < end ? bits : end));
      bits += step;
    }
    f(x.data(), y.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const double wanted = exact(x[i]);
      const double scale = std::fmax(std::fabs(wanted), unit);
      const double error = std::fabs(y[i] - wanted) / scale;
      if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    }
  }
  return worst;
}

float one(Function f, float x) {
  std::vector<float> in(16, x), out(16);
  f(in.data(), out.data(), 16);
  return out[0];
}

double exact_rsqrt(double x) { return 1 / std::sqrt(x); }
double exact_exp(double x) { return std::exp(x); }
double exact_log(double x) { return std::log(x); }

}  // namespace

int run_math(unsigned step) {
  int passed = 0, failed = 0;
  const auto expect = [&](bool holds, const char* level, const std::string& what) {
    ++(holds ? passed : failed);
    if (!holds) std::printf("FAILED %s: %s\n", level, what.c_str());
  };
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float smallest = std::numeric_limits<float>::min(), largest = std::numeric_limits<float>::max();
  constexpr double kBound = 1.2e-7;
  for (const capsedge::Level* level : capsedge::levels_here()) {
    const double errors[] = {
        worst_error(level->exp, exact_exp, 0.0f, 88.7f, 0, step),
        worst_error(level->exp, exact_exp, -0.0f, -87.3f, 0, step),
        worst_error(level->log, exact_log, smallest, largest, 1, step),
        worst_error(level->rsqrt, exact_rsqrt, smallest, largest, 0, step),
    };
    const char* names[] = {"exp of x > 0", "exp of x < 0", "log", "1/sqrt"};
    for (size_t i = 0; i < 4; ++i) {
      std::printf("%s: %s: largest error %.3g\n", level->name, names[i], errors[i]);
      expect(errors[i] <= kBound, level->name, std::string(names[i]) + " misses its bound");
    }
    expect(one(level->exp, -infinity) == 0, level->name, "exp(-inf) is not 0");
    expect(one(level->exp, -100) == 0, level->name, "exp(-100) is not 0");
    expect(one(level->exp, 100) == infinity, level->name, "exp(100) is not inf");
    expect(one(level->exp, 0) == 1, level->name, "exp(0) is not 1");
    expect(std::isnan(one(level->exp, nan)), level->name, "exp(nan) is a number");
    expect(one(level->log, infinity) == infinity, level->name, "log(inf) is not inf");
    expect(one(level->log, 1) == 0, level->name, "log(1) is not 0");
    expect(std::isnan(one(level->log, nan)), level->name, "log(nan) is a number");
  }
  std::printf("math: %d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
