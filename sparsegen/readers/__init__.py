"""One file per matrix file format: `read(raw, where)` gives the `Stored` matrix of a file's bytes."""
