"""Predictions for any number of images, on one machine or on a cluster, in one table."""
