"""DeepSHAP by hand in PyTorch: the baseline of `rationale bench`, and its float64 values."""
