// In libFuzzer's place: runs the target over the files named on the command line.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    // As long as the file, so that a sanitizer sees what reads past it.
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) return std::fprintf(stderr, "cannot read %s\n", argv[i]), 2;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("replayed %d\n", argc - 1);
}
