# TensorRT's and CUDA's headers, where they are: for engines in libcapsedge, and for the plugin library (cuda.cmake).
# Neither library is linked to TensorRT.
set(CAPSEDGE_TENSORRT_INCLUDE "" CACHE PATH "Folder with NvInferRuntime.h, where it is not in a usual place")
find_path(CAPSEDGE_NVINFER NvInferRuntime.h HINTS ${CAPSEDGE_TENSORRT_INCLUDE} PATH_SUFFIXES
  ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
find_path(CAPSEDGE_CUDART_INCLUDE cuda_runtime_api.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
if(CAPSEDGE_NVINFER AND CAPSEDGE_CUDART_INCLUDE)
  set(found ON)
else()
  set(found OFF)
endif()
option(CAPSEDGE_TENSORRT "TensorRT engines in libcapsedge" ${found})
if(CAPSEDGE_TENSORRT AND NOT found)
  message(FATAL_ERROR "capsedge: TensorRT engines in libcapsedge need the headers NvInferRuntime.h and "
    "cuda_runtime_api.h. Set CAPSEDGE_TENSORRT_INCLUDE and CAPSEDGE_CUDART_INCLUDE to their folders, or leave "
    "CAPSEDGE_TENSORRT out.")
endif()
message(STATUS "capsedge: TensorRT engines in libcapsedge: ${CAPSEDGE_TENSORRT}")
