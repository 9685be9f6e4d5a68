"""The memory of a graph, and walks over references in chunks that fit a budget."""
