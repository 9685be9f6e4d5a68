"""The reverse walk, the same for every method."""
