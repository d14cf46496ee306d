// capsedge_native_tests levels | cases FOLDER [all] | concurrent FOLDER | math [STEP]

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "run_case.h"

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  try {
    if (what == "levels") return std::printf("levels: %s\n", capsedge_kernel_levels()) < 0;
    if (what == "cases" && count > 2) return run_cases(words[2], count > 3 && std::string(words[3]) == "all");
    if (what == "concurrent" && count > 2) return run_concurrent(words[2]);
#ifndef CAPSEDGE_C_INTERFACE_ONLY  // linked with a finished library, which exports nothing else
    if (what == "math") return run_math(count > 2 ? static_cast<unsigned>(std::strtoul(words[2], nullptr, 10)) : 1);
#endif
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  std::fprintf(stderr, "usage: capsedge_native_tests levels | cases FOLDER [all] | concurrent FOLDER | math [STEP]\n");
  return 2;
}
