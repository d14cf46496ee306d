"""Files from anywhere, read within limits, and files of ours, written whole or not at all."""
