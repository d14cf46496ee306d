"""capsedge inside other people's frameworks, one module each; none is imported before it is used."""
