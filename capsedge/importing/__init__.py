"""``capsedge import``: trained weights of public families become checkpoints. Needs torch."""
