"""capsedge inside other frameworks, one module each; none is imported before it is used."""
