"""The engines and their methods."""
