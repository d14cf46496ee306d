"""Write a network as plain C99: constants, kernels and one function that runs it, without torch."""
