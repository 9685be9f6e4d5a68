"""The checks that a graph must pass before anything is written: measurements beside the model, and limits."""
