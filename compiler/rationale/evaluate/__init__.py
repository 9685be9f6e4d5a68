"""How faithful explanations are: deletion, insertion, random weights, sampled Shapley values."""
