"""From an image to a model's input, and from its outputs to a prediction and a picture."""
