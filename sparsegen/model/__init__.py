"""The learned generator: what it reads of a matrix, the text it writes, the network between, and its checkpoint."""
