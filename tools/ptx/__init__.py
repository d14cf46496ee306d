"""Run nvcc's own code on the CPU: the PTX of the CUDA kernels, and a libcudart that executes it.

`build` compiles the kernels' library, unmodified, for one architecture and with a shared libcudart; `native`
holds the test libcudart that this library then loads, which executes the PTX of the same compilation.
"""
