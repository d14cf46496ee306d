"""The executed PTX and the libcudart of tools/ptx: what they count, what they find, and how they fail."""
