// One operator run by several threads at the same time, and several operators side by side: the same bits as alone.

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "run_case.h"

int run_concurrent(const std::string& folder) {
  const std::vector<std::string> paths = list_cases(folder, false);
  std::vector<Case> cases;
  // A spread over all operators: every seventh case.
  for (size_t i = 0; i < paths.size(); i += 7) cases.push_back(read_case(paths[i]));
  int passed = 0, failed = 0;
  for (const std::string& level : levels()) {
    use_level(level);
    std::vector<std::unique_ptr<Runner>> runners;
    std::vector<std::vector<std::vector<char>>> alone;
    for (const Case& c : cases) {
      runners.push_back(std::make_unique<Runner>(c, true));
      alone.push_back(runners.back()->run(1));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        // Neighbouring threads meet on the same operator and on different ones.
        for (size_t round = 0; round < 2; ++round)
          for (size_t i = 0; i < runners.size(); ++i) {
            const size_t at = (i + t / 2) % runners.size();
            if (runners[at]->run(2) != alone[at]) ++wrong;
          }
      });
    for (std::thread& thread : threads) thread.join();
    if (wrong) std::printf("FAILED %s: %d runs gave other bits than alone\n", level.c_str(), wrong.load());
    ++(wrong ? failed : passed);
  }
  std::printf("concurrent: %d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
