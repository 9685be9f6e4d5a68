"""Explanations of tree ensembles by lookup tables."""
