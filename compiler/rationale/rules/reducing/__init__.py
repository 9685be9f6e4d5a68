"""Operators that combine many values: sums, norms, normalisations, Softmax."""
