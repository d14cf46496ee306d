"""Networks in the user's own code: running it, its weights, its inputs."""
