"""The model repository: its entries as read from disk, and the registry of those served."""
