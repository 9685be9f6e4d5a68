"""Operators that are linear in each input: products, convolutions, spectra."""
