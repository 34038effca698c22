"""Same tokens, same numbers: padding, positions, and sampler against scorer."""
