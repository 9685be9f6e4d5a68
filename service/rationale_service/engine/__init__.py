"""Path from a decoded request to a checked answer: limits, caches, deadlines."""
