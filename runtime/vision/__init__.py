"""From an image to the input of a model, and from its outputs to a prediction and a picture."""
