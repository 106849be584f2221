"""Training the generator: text to learn from, pairs of matrix and kernel, rewards, and the three loops."""
