# The TensorRT plugin libraries, one for each major version of TensorRT whose headers are here; not for an installation:
# they come in capsedge-cuda, beside the file of kernels (tools/plugin_libraries.py).
set(CAPSEDGE_PLUGIN_SOURCES
  tensorrt/attributes.cpp tensorrt/kernels_file.cpp tensorrt/library.cpp tensorrt/plugin.cpp kernels/operators.cpp
  kernels/input_shapes.cpp kernels/cuda_node.cpp)
set(CAPSEDGE_PLUGIN_EXPORTS ${CMAKE_CURRENT_SOURCE_DIR}/tensorrt/exports.map)

function(capsedge_plugin_library target headers)
  add_library(${target} SHARED EXCLUDE_FROM_ALL ${ARGN} ${CAPSEDGE_PLUGIN_SOURCES} $<TARGET_OBJECTS:capsedge_cuda_host>)
  target_include_directories(${target} PRIVATE kernels kernels/cuda tensorrt ${CMAKE_CURRENT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${headers} tensorrt/cuda)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc
    -Wl,--version-script=${CAPSEDGE_PLUGIN_EXPORTS})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${CAPSEDGE_PLUGIN_EXPORTS})
  add_dependencies(capsedge_tensorrt ${target})
endfunction()

set(folders ${CAPSEDGE_TENSORRT_INCLUDE})
if(NOT folders AND CAPSEDGE_NVINFER)
  set(folders ${CAPSEDGE_NVINFER})
endif()
set(majors "")
foreach(folder ${folders})
  capsedge_tensorrt_major("${folder}" major)
  if(NOT major OR major LESS 10)  # without a version, a stand-in of the tests
    continue()
  endif()
  if(major IN_LIST majors)
    message(FATAL_ERROR "capsedge: CAPSEDGE_TENSORRT_INCLUDE names headers of TensorRT ${major} twice. Name one folder for "
      "each major version: the oldest that is to be supported.")
  endif()
  list(APPEND majors ${major})
endforeach()
if(NOT majors)
  capsedge_cannot_build("NvInferRuntime.h of TensorRT 10.3 or newer was not found. Set CAPSEDGE_TENSORRT_INCLUDE to the \
folders of TensorRT's headers, one for each major version, and configure again." capsedge_tensorrt)
  return()
endif()
add_custom_target(capsedge_tensorrt)
foreach(folder ${folders})
  capsedge_tensorrt_major("${folder}" major)
  if(NOT major OR major LESS 10)
    continue()
  endif()
  # Not linked to libnvinfer: TensorRT's loadLibrary finds getCreators and setLoggerFinder.
  capsedge_plugin_library(capsedge_tensorrt${major} ${folder})
  # Registers itself when loaded: LD_PRELOAD for Triton, trtexec --staticPlugins.
  capsedge_plugin_library(capsedge_tensorrt${major}_static ${folder} tensorrt/register.cpp)
endforeach()
