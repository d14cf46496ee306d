"""Putting models where people use them: for now a folder that any web server can host."""
