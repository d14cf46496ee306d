# TensorRT's and CUDA's headers, where they are: for engines in libcapsedge, and for the plugin libraries
# (plugins.cmake). None of these is linked to TensorRT.
set(CAPSEDGE_TENSORRT_INCLUDE "" CACHE STRING
  "Folders with NvInferRuntime.h, where it is not in a usual place: one for each major version")
find_path(CAPSEDGE_NVINFER NvInferRuntime.h HINTS ${CAPSEDGE_TENSORRT_INCLUDE} PATH_SUFFIXES
  ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)

# The major version of TensorRT's headers in a folder; empty if it has none.
function(capsedge_tensorrt_major folder result)
  set(major "")
  if(EXISTS "${folder}/NvInferVersion.h")
    file(STRINGS ${folder}/NvInferVersion.h major REGEX "define (NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +[0-9]")
    string(REGEX MATCH "[0-9]+" major "${major}")
  endif()
  set(${result} "${major}" PARENT_SCOPE)
endfunction()

# Older headers, as of JetPack 5, must not break an installation that does not ask for engines.
if(EXISTS "${CAPSEDGE_NVINFER}/NvInferVersion.h")
  capsedge_tensorrt_major("${CAPSEDGE_NVINFER}" major)
  if(major LESS 10)
    message(STATUS "capsedge: TensorRT ${major} in ${CAPSEDGE_NVINFER} is too old; wanted: 10.3 or newer")
    set(CAPSEDGE_NVINFER CAPSEDGE_NVINFER-NOTFOUND)
  endif()
endif()
find_path(CAPSEDGE_CUDART_INCLUDE cuda_runtime_api.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
if(CAPSEDGE_NVINFER AND CAPSEDGE_CUDART_INCLUDE AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(found ON)
else()
  set(found OFF)
endif()
option(CAPSEDGE_TENSORRT "TensorRT engines in libcapsedge" ${found})
if(CAPSEDGE_TENSORRT AND NOT found)
  message(FATAL_ERROR "capsedge: TensorRT engines in libcapsedge need the headers NvInferRuntime.h of TensorRT 10.3 or newer and "
    "cuda_runtime_api.h. Set CAPSEDGE_TENSORRT_INCLUDE and CAPSEDGE_CUDART_INCLUDE to their folders, or leave "
    "CAPSEDGE_TENSORRT out.")
endif()
message(STATUS "capsedge: TensorRT engines in libcapsedge: ${CAPSEDGE_TENSORRT}")
