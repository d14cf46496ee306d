// The types of CUDA that TensorRT's headers use, so that the plugin libraries need no header of CUDA.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
