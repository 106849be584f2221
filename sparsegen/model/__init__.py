"""The learned generator: a small model that reads a problem and writes kernel files for it."""
