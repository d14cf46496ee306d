// What goes wrong inside the library; capsedge.cpp turns it into a status.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "capsedge.h"

namespace capsedge::embedding {

// What failed, why, and what mends it: sentences for a person; the last two may be empty.
class Failure : public std::exception {
 public:
  Failure(capsedge_code code, const std::string& what, const std::string& why, const std::string& fix)
      : code_(code), message_(what) {
    if (!why.empty()) message_ += "\n" + why;
    if (!fix.empty()) message_ += "\n" + fix;
  }
  capsedge_code code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  capsedge_code code_;
  std::string message_;
};

[[noreturn]] inline void fail_usage(const std::string& what, const std::string& why = "", const std::string& fix = "") {
  throw Failure(CAPSEDGE_USAGE, what, why, fix);
}

}  // namespace capsedge::embedding
