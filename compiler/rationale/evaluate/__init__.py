"""How faithful explanations are: deletion, insertion, infidelity, random weights, sampled Shapley values."""
