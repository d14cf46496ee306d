"""Run everything on a GPU that is available only for minutes: see `__main__`."""
