"""The learned generator: it reads the coordinates of a matrix and writes kernel files."""
