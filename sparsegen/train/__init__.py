"""Training the generator: rewards, techniques, and the three loops. torch is imported here and in model/ only."""
