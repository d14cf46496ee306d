"""The operators of the domain ``capsedge`` as plain data: one table that every part of the package reads."""
