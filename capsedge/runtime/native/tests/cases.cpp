// Every case at every SIMD level of the machine: within tolerance of the oracle, and the same bits for any number
// of threads and whether the weights were packed before or not.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "run_case.h"

namespace {

size_t element_bytes(const std::string& dtype) {
  return dtype == "int8" || dtype == "uint8" ? 1 : dtype == "float16" ? 2 : 4;
}

int32_t type_of(const std::string& dtype) {
  if (dtype == "float32") return CAPSEDGE_KERNEL_FLOAT;
  if (dtype == "float16") return CAPSEDGE_KERNEL_FLOAT16;
  if (dtype == "int8") return CAPSEDGE_KERNEL_INT8;
  if (dtype == "uint8") return CAPSEDGE_KERNEL_UINT8;
  if (dtype == "int32") return CAPSEDGE_KERNEL_INT32;
  throw std::runtime_error("a case has type " + dtype);
}

capsedge_kernel_tensor tensor_of(const std::string& dtype, const std::vector<int64_t>& shape, const void* data) {
  return {const_cast<void*>(data), shape.data(), static_cast<int32_t>(shape.size()), type_of(dtype)};
}

double value_at(const std::string& dtype, const std::vector<char>& bytes, size_t i) {
  if (dtype == "float32") {
    float x;
    std::memcpy(&x, bytes.data() + 4 * i, 4);
    return x;
  }
  if (dtype == "uint8") return static_cast<unsigned char>(bytes[i]);
  uint16_t h;
  std::memcpy(&h, bytes.data() + 2 * i, 2);
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

// Largest error over its tolerance; infinite for a NaN.
double excess(const Case& c, const Array& wanted, const std::vector<char>& found) {
  double worst = 0;
  const size_t count = wanted.bytes.size() / sizeof(double);
  for (size_t i = 0; i < count; ++i) {
    double w;
    std::memcpy(&w, wanted.bytes.data() + i * sizeof w, sizeof w);
    const double e = std::fabs(value_at(c.dtype, found, i) - w) / (wanted.atol + wanted.rtol * std::fabs(w));
    if (!(e <= worst)) worst = std::isnan(e) ? INFINITY : e;
  }
  return worst;
}

}  // namespace

Runner::Runner(const Case& c, bool constant_weight) : case_(c) {
  std::vector<capsedge_kernel_attribute> attributes;
  for (const auto& [name, values] : c.attributes)
    attributes.push_back({name.c_str(), values.data(), static_cast<int32_t>(values.size())});
  char error[512] = "";
  if (capsedge_kernel_create(c.op.c_str(), attributes.data(), static_cast<int32_t>(attributes.size()), &op_, error,
                      sizeof error))
    throw std::runtime_error(error);
  for (size_t i = 0; constant_weight && i < c.inputs.size(); ++i) {
    if (c.inputs[i].name != "weight" && c.inputs[i].name != "weight_scale") continue;
    const capsedge_kernel_tensor tensor = tensor_of(c.inputs[i].dtype, c.inputs[i].shape, c.inputs[i].bytes.data());
    if (capsedge_kernel_constant(op_, static_cast<int32_t>(i), &tensor, error, sizeof error)) {
      capsedge_kernel_destroy(op_);
      throw std::runtime_error(error);
    }
  }
}

Runner::~Runner() { capsedge_kernel_destroy(op_); }

std::vector<std::vector<char>> Runner::run(int threads) const {
  std::vector<capsedge_kernel_tensor> inputs, outputs;
  for (const Array& x : case_.inputs) inputs.push_back(tensor_of(x.dtype, x.shape, x.bytes.data()));
  std::vector<std::vector<char>> found;
  // All ones: a NaN wherever nothing is written.
  for (const Array& x : case_.outputs)
    found.emplace_back(x.bytes.size() / sizeof(double) * element_bytes(case_.dtype), static_cast<char>(0xff));
  for (size_t i = 0; i < found.size(); ++i)
    outputs.push_back(tensor_of(case_.dtype, case_.outputs[i].shape, found[i].data()));
  char error[512] = "";
  if (capsedge_kernel_run(op_, inputs.data(), static_cast<int32_t>(inputs.size()), outputs.data(),
                   static_cast<int32_t>(outputs.size()), threads, error, sizeof error))
    throw std::runtime_error(error);
  return found;
}

std::vector<std::string> levels() {
  std::istringstream names(capsedge_kernel_levels());
  std::vector<std::string> found;
  for (std::string name; std::getline(names, name, ',');) found.push_back(name);
  return found;
}

void use_level(const std::string& level) {
#ifdef _WIN32
  _putenv_s("CAPSEDGE_SIMD", level.c_str());
#else
  setenv("CAPSEDGE_SIMD", level.c_str(), 1);
#endif
}

int run_cases(const std::string& folder, bool heavy) {
  int passed = 0, failed = 0;
  for (const std::string& path : list_cases(folder, heavy)) {
    const Case c = read_case(path);
    for (const std::string& level : levels()) {
      use_level(level);
      std::string problem;
      try {
        const auto found = Runner(c, true).run(1);
        for (size_t i = 0; i < found.size(); ++i)
          if (const double e = excess(c, c.outputs[i], found[i]); e > 1)
            problem += " output '" + c.outputs[i].name + "' is " + std::to_string(e) + " times the tolerance off;";
        if (Runner(c, true).run(3) != found) problem += " three threads give other bits than one;";
        if (Runner(c, false).run(2) != found) problem += " weights packed per run give other bits;";
      } catch (const std::exception& e) {
        problem = std::string(" ") + e.what();
      }
      ++(problem.empty() ? passed : failed);
      if (!problem.empty())
        std::printf("FAILED %s %s %s:%s\n", level.c_str(), c.dtype.c_str(), c.name.c_str(), problem.c_str());
    }
  }
  std::printf("cases: %d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
