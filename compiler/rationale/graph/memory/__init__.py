"""How much a graph takes, and how references are walked in chunks so that it fits a budget."""
