"""What is explained without a walk: trees by their tables, any model by calling it for coalitions."""
