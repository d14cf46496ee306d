"""capsedge inside other frameworks. Nothing here is imported unless it is asked for."""
