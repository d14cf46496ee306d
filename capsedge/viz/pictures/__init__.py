"""One file a picture: the numbers, and how they are drawn."""
