// Failures inside the library; capsedge.cpp turns them into statuses.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "capsedge.h"
#include "text.h"

namespace capsedge::libcapsedge {

// What failed, why, and how to fix it, in sentences; the last two may be empty. They may quote files: each becomes one
// line that is safe to print on a terminal.
class Failure : public std::exception {
 public:
  Failure(capsedge_code code, const std::string& what, const std::string& why, const std::string& fix)
      : Failure(code, what, std::vector<std::string>{why}, fix) {}
  // With a reason that spans several lines.
  Failure(capsedge_code code, const std::string& what, const std::vector<std::string>& why, const std::string& fix)
      : code_(code), message_(printable(what)) {
    for (const std::string& line : why) add(line);
    add(fix);
  }
  capsedge_code code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  void add(const std::string& line) {
    if (!line.empty()) message_ += "\n" + printable(line);
  }

  capsedge_code code_;
  std::string message_;
};

[[noreturn]] inline void fail_usage(const std::string& what, const std::string& why = "", const std::string& fix = "") {
  throw Failure(CAPSEDGE_USAGE, what, why, fix);
}

}  // namespace capsedge::libcapsedge
