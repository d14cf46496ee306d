"""What zig does not do for macOS: link with our exports alone and the system's libc++; judge the result."""
