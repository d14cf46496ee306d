"""Predict any number of images into one table, on one machine or on a cluster."""
