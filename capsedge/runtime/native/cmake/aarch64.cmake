# Cross-building for 64-bit ARM with Debian's compiler (apt-get install g++-aarch64-linux-gnu qemu-user):
#   cmake -S capsedge/runtime/native -B build/arm --toolchain cmake/aarch64.cmake -DCAPSEDGE_TESTS=ON
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
