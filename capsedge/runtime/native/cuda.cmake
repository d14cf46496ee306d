# The CUDA kernels, one file for every GPU, which the host's libraries load: `make cuda`.
option(CAPSEDGE_CUDA "Build the CUDA kernels as a file, and a library that loads it" OFF)
set(CAPSEDGE_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to build for, as in 87;110; by default all that nvcc knows of ours")

# A target that cannot be built here says what is missing, instead of "no rule to make target".
function(capsedge_cannot_build missing)
  foreach(target ${ARGN})
    add_custom_target(${target}
      COMMAND ${CMAKE_COMMAND} -E echo "${target} cannot be built: ${missing}"
      COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  endforeach()
endfunction()

if(NOT CAPSEDGE_CUDA)
  capsedge_cannot_build("the build was configured without -DCAPSEDGE_CUDA=ON." capsedge_cuda)
  return()
endif()
find_program(CAPSEDGE_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda)
if(NOT CAPSEDGE_NVCC)
  capsedge_cannot_build("nvcc was not found. Install the CUDA toolkit, or set CUDA_HOME to its folder, and configure again."
    capsedge_cuda)
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
message(STATUS "capsedge: CUDA kernels for ${CAPSEDGE_CUDA_ARCHITECTURES} with ${CAPSEDGE_NVCC}")
