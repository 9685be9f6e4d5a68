"""What a graph must pass before anything is written: it is measured beside the model, and judged."""
