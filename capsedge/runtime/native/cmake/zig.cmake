# Cross-building with zig's Clang and an old C library, for wheels (tools/wheels.py sets both variables):
#   CAPSEDGE_ZIG     the compiler's program
#   CAPSEDGE_TARGET  x86_64-linux-gnu.2.17, aarch64-linux-gnu.2.17, x86_64-windows-gnu or aarch64-macos.14.0
#   CAPSEDGE_LINK    for macOS, the command that links
if("$ENV{CAPSEDGE_TARGET}" MATCHES "-windows")
  set(CMAKE_SYSTEM_NAME Windows)
elseif("$ENV{CAPSEDGE_TARGET}" MATCHES "-macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "$ENV{CAPSEDGE_TARGET}")
foreach(language C CXX)
  string(TOLOWER "${language}" command)
  string(REPLACE "xx" "++" command "${command}")
  set(CMAKE_${language}_COMPILER "$ENV{CAPSEDGE_ZIG};${command};-target;$ENV{CAPSEDGE_TARGET}")
  set(CMAKE_${language}_ARCHIVE_CREATE "\"$ENV{CAPSEDGE_ZIG}\" ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_APPEND "\"$ENV{CAPSEDGE_ZIG}\" ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "\"$ENV{CAPSEDGE_ZIG}\" ranlib <TARGET>")
endforeach()
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  set(CMAKE_INSTALL_NAME_TOOL true)  # CMake wants one; names are right when linked
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # a program would be linked with zig's libc++
  # Nothing of libc++ that the oldest system lacks. zig says that every system has all of its own.
  set(CMAKE_CXX_FLAGS_INIT "-U_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS -D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1")
endif()
