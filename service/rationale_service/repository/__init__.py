"""The model repository: its entries, read from disk, and the registry of the served ones."""
