"""KServe v1: predictions, explanations and decisions by the names of features."""
