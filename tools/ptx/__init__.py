"""nvcc's own code on the CPU: the PTX of the CUDA kernels, executed, and a libcudart that runs it.

`build` compiles the kernels' library, unmodified, for one architecture and with a shared libcudart; `native`
holds the libcudart for tests that it then finds, which executes the PTX of the same compilation.
"""
