// Runs a case through the C interface.
#pragma once

#include <string>
#include <vector>

#include "capsedge/kernels.h"
#include "case_file.h"

class Runner {
 public:
  // At the level that CAPSEDGE_SIMD says. Throws std::runtime_error with the library's sentence.
  explicit Runner(const Case& c, bool constant_weight);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Raw bytes of every output.
  std::vector<std::vector<char>> run(int threads) const;

 private:
  const Case& case_;
  capsedge_kernel* op_ = nullptr;
};

std::vector<std::string> levels();
void use_level(const std::string& level);

int run_cases(const std::string& folder, bool heavy);
int run_concurrent(const std::string& folder);
int run_math(unsigned step);
