"""Faithfulness of explanations: deletion, insertion, random weights, sampled Shapley values."""
