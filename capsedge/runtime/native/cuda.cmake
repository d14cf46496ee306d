# The CUDA kernels and the TensorRT plugin library, where nvcc and TensorRT's headers are. `make cuda` builds the
# kernels alone: one file for every GPU, which the host's library loads. An installation builds the plugin library,
# which has the kernels inside, where both are found.
option(CAPSEDGE_CUDA "Build the CUDA kernels as a file, and a library that loads it" OFF)
set(CAPSEDGE_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to build for, as in 87;110; by default all that nvcc knows of ours")
set(CAPSEDGE_TENSORRT_LIBRARY "" CACHE FILEPATH "libnvinfer.so, where it is not in a usual place")

# A target that cannot be built here says what is missing, instead of "no rule to make target".
function(capsedge_cannot_build missing)
  foreach(target ${ARGN})
    add_custom_target(${target}
      COMMAND ${CMAKE_COMMAND} -E echo "${target} cannot be built: ${missing}"
      COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  endforeach()
endfunction()
set(CAPSEDGE_NO_HEADERS "NvInferRuntime.h of TensorRT 10.3 or newer was not found. Install TensorRT's headers, or set \
CAPSEDGE_TENSORRT_INCLUDE to their folder, and configure again.")

find_program(CAPSEDGE_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda)
if(NOT CAPSEDGE_NVCC)
  message(STATUS "capsedge: no nvcc found, so the CUDA kernels and the TensorRT plugin library are left out "
    "(engines with `--plugin native` need neither)")
  capsedge_cannot_build("nvcc was not found. Install the CUDA toolkit, or set CUDA_HOME to its folder, and configure again."
    capsedge_cuda capsedge_tensorrt capsedge_tensorrt_static)
  return()
endif()
if(NOT CAPSEDGE_NVINFER AND NOT CAPSEDGE_CUDA)
  message(STATUS "capsedge: no NvInferRuntime.h found, so the TensorRT plugin library is left out (engines with "
    "`--plugin native` do not need it; set CAPSEDGE_TENSORRT_INCLUDE to the folder of TensorRT's headers)")
  capsedge_cannot_build("the build was configured without -DCAPSEDGE_CUDA=ON." capsedge_cuda)
  capsedge_cannot_build("${CAPSEDGE_NO_HEADERS}" capsedge_tensorrt capsedge_tensorrt_static)
  return()
endif()

# Turing, Ampere, Orin, Ada, Hopper, Blackwell, Thor; PTX of the newest for what comes after.
if(NOT CAPSEDGE_CUDA_ARCHITECTURES)
  execute_process(COMMAND ${CAPSEDGE_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  foreach(architecture 75 80 86 87 89 90 100 110 120)
    if(known MATCHES "sm_${architecture}[^0-9]")
      list(APPEND CAPSEDGE_CUDA_ARCHITECTURES ${architecture})
    endif()
  endforeach()
endif()
list(GET CAPSEDGE_CUDA_ARCHITECTURES -1 newest)

if(CAPSEDGE_CUDA)
  set(CAPSEDGE_GENCODE "")
  foreach(architecture ${CAPSEDGE_CUDA_ARCHITECTURES})
    list(APPEND CAPSEDGE_GENCODE -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(APPEND CAPSEDGE_GENCODE -gencode=arch=compute_${newest},code=compute_${newest})
  file(GLOB CAPSEDGE_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/*.h)
  set(CAPSEDGE_KERNELS_SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/kernels.cu)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/capsedge.fatbin
    COMMAND ${CAPSEDGE_NVCC} -fatbin -std=c++17 -Xfatbin=-compress-all ${CAPSEDGE_GENCODE} ${CAPSEDGE_KERNELS_SOURCE}
      -o ${CMAKE_BINARY_DIR}/capsedge.fatbin
    DEPENDS ${CAPSEDGE_KERNELS_SOURCE} ${CAPSEDGE_CUDA_SOURCES} VERBATIM)
  add_custom_target(capsedge_fatbin DEPENDS ${CMAKE_BINARY_DIR}/capsedge.fatbin)
  add_library(capsedge_cuda SHARED $<TARGET_OBJECTS:capsedge_cuda_host>)
  target_link_libraries(capsedge_cuda PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(capsedge_cuda PRIVATE -static-libstdc++ -static-libgcc)
  add_dependencies(capsedge_cuda capsedge_fatbin)
  capsedge_cannot_build("this build has the kernels alone. Configure without -DCAPSEDGE_CUDA=ON."
    capsedge_tensorrt capsedge_tensorrt_static)
  message(STATUS "capsedge: CUDA kernels for ${CAPSEDGE_CUDA_ARCHITECTURES} with ${CAPSEDGE_NVCC}")
  return()
endif()

set(architectures "")
foreach(architecture ${CAPSEDGE_CUDA_ARCHITECTURES})
  list(APPEND architectures ${architecture}-real)
endforeach()
list(APPEND architectures ${newest}-virtual)
set(CMAKE_CUDA_COMPILER ${CAPSEDGE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES ${newest})
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
add_library(capsedge_cuda_kernels OBJECT kernels/cuda/kernels.cu ${CAPSEDGE_CUDA_HOST})
set_target_properties(capsedge_cuda_kernels PROPERTIES CUDA_ARCHITECTURES "${architectures}")
target_include_directories(capsedge_cuda_kernels PUBLIC kernels/cuda)
target_compile_definitions(capsedge_cuda_kernels PRIVATE CAPSEDGE_CUDA_LINKED)
target_compile_options(capsedge_cuda_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all>)
set(CAPSEDGE_CUDA_LINK -static-libstdc++ -static-libgcc)
add_library(capsedge_tensorrt_plugins OBJECT
  tensorrt/attributes.cpp tensorrt/library.cpp tensorrt/plugin.cpp kernels/operators.cpp
  kernels/input_shapes.cpp kernels/cuda_node.cpp)
target_include_directories(capsedge_tensorrt_plugins PUBLIC kernels kernels/cuda tensorrt ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(capsedge_tensorrt_plugins SYSTEM PUBLIC
  ${CAPSEDGE_NVINFER} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_compile_options(capsedge_tensorrt_plugins PRIVATE -Wall -Wextra)
# Not linked to libnvinfer: TensorRT's loadLibrary finds getCreators and setLoggerFinder.
add_library(capsedge_tensorrt SHARED
  $<TARGET_OBJECTS:capsedge_cuda_kernels> $<TARGET_OBJECTS:capsedge_tensorrt_plugins>)
set_target_properties(capsedge_tensorrt PROPERTIES LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY Static)
set(CAPSEDGE_PLUGIN_EXPORTS ${CMAKE_CURRENT_SOURCE_DIR}/tensorrt/exports.map)
target_link_options(capsedge_tensorrt PRIVATE ${CAPSEDGE_CUDA_LINK} "LINKER:--version-script=${CAPSEDGE_PLUGIN_EXPORTS}")
set_target_properties(capsedge_tensorrt PROPERTIES LINK_DEPENDS ${CAPSEDGE_PLUGIN_EXPORTS})
install(TARGETS capsedge_tensorrt LIBRARY DESTINATION capsedge/runtime/_native)
find_library(CAPSEDGE_LIBNVINFER nvinfer HINTS ${CAPSEDGE_TENSORRT_LIBRARY})
if(CAPSEDGE_LIBNVINFER)
  # Registers itself when loaded: LD_PRELOAD for Triton, trtexec --staticPlugins.
  add_library(capsedge_tensorrt_static SHARED tensorrt/register.cpp
    $<TARGET_OBJECTS:capsedge_cuda_kernels> $<TARGET_OBJECTS:capsedge_tensorrt_plugins>)
  target_include_directories(capsedge_tensorrt_static PRIVATE kernels kernels/cuda tensorrt ${CMAKE_CURRENT_SOURCE_DIR})
  target_include_directories(capsedge_tensorrt_static SYSTEM PRIVATE
    ${CAPSEDGE_NVINFER} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  set_target_properties(capsedge_tensorrt_static PROPERTIES LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY Static)
  target_link_libraries(capsedge_tensorrt_static PRIVATE ${CAPSEDGE_LIBNVINFER})
  install(TARGETS capsedge_tensorrt_static LIBRARY DESTINATION capsedge/runtime/_native)
else()
  capsedge_cannot_build("libnvinfer.so was not found. Install TensorRT, or set CAPSEDGE_TENSORRT_LIBRARY to the file, and \
configure again." capsedge_tensorrt_static)
endif()
message(STATUS "capsedge: CUDA kernels for ${CAPSEDGE_CUDA_ARCHITECTURES} with ${CAPSEDGE_NVCC}; "
  "TensorRT headers: ${CAPSEDGE_NVINFER}")
