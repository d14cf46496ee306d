"""What this machine has: processor, packages, drivers, and the compiled libraries of capsedge."""
