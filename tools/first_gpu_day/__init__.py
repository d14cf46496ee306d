"""Everything to run on a GPU that is there for minutes: see `__main__`."""
