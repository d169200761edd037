"""The models: what a config file means, and the forward pass over a flat batch. Reads no files."""
