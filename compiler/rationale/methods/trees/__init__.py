"""Explanations of tree ensembles by their tables."""
