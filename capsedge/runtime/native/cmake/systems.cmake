# What compilers and linkers of the systems do differently.

# Why no library is built by this compiler for this system; empty where one is.
function(capsedge_refusal result)
  set(why "")
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" OR CMAKE_CXX_SIMULATE_ID STREQUAL "MSVC"
      OR NOT CMAKE_SYSTEM_NAME MATCHES "^(Linux|Windows|Darwin)$")
    set(why "${CMAKE_CXX_COMPILER_ID} on ${CMAKE_SYSTEM_NAME} is not supported (GCC or Clang on Linux, Clang for MinGW on \
Windows and Clang on macOS are)")
  elseif(CMAKE_SYSTEM_NAME STREQUAL "Windows" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(why "GCC for Windows does not align AVX-512 values on the stack (its bug 54412), and code with them would crash; \
Clang for MinGW is supported")
  endif()
  set(${result} "${why}" PARENT_SCOPE)
endfunction()

if(APPLE)
  set(CMAKE_BUILD_WITH_INSTALL_NAME_DIR ON)
  set(CMAKE_INSTALL_NAME_DIR "@rpath")
  if(CMAKE_CROSSCOMPILING)  # zig compiles; tools/macos/link.py says why it does not link
    set(CMAKE_CXX_CREATE_SHARED_LIBRARY
      "$ENV{CAPSEDGE_LINK} -install_name <TARGET_INSTALLNAME_DIR><TARGET_SONAME> -o <TARGET> <LINK_FLAGS> <OBJECTS> <LINK_LIBRARIES>")
  endif()
endif()

# Links all of an archive, also what nothing refers to.
function(capsedge_link_whole target archive)
  if(APPLE)
    target_link_libraries(${target} PRIVATE ${archive})
    target_link_options(${target} PRIVATE -Wl,-force_load,$<TARGET_FILE:${archive}>)
  else()
    target_link_libraries(${target} PRIVATE -Wl,--whole-archive ${archive} -Wl,--no-whole-archive)
  endif()
endfunction()

# Lets a library export the names in a version script and nothing else, and need no library of C++.
function(capsedge_export target map)
  set(exports ${map})
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${map})
    file(STRINGS ${map} names REGEX "^ *[A-Za-z_]+;$")
    list(TRANSFORM names REPLACE "^ *(.*);$" "\\1")
  endif()
  if(WIN32)
    set(exports ${CMAKE_CURRENT_BINARY_DIR}/${target}.def)
    list(JOIN names "\n  " names)
    file(CONFIGURE OUTPUT ${exports} CONTENT "EXPORTS\n  ${names}\n" @ONLY)
    target_link_options(${target} PRIVATE ${exports})
  elseif(APPLE)
    set(exports ${CMAKE_CURRENT_BINARY_DIR}/${target}.exports)
    list(TRANSFORM names PREPEND "_")
    list(JOIN names "\n" names)
    file(CONFIGURE OUTPUT ${exports} CONTENT "${names}\n" @ONLY)
    target_link_options(${target} PRIVATE -Wl,-exported_symbols_list,${exports})
  else()
    target_link_options(${target} PRIVATE -Wl,--version-script=${exports} -static-libstdc++ -static-libgcc)
  endif()
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${exports})
endfunction()
