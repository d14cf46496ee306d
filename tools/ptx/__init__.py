"""Run nvcc's own code on the CPU: the PTX of the CUDA kernels, and a libcudart that executes it.

`build` compiles the kernels for one architecture by nvcc and the host's half, unmodified, by g++; `native`
holds the test libcudart that the host's half then finds, which executes the PTX of the same compilation.
"""
