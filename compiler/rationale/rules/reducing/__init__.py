"""Operators that bring many values together: sums, norms, normalisations, Softmax."""
