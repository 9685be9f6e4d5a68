"""Sums of trees from boosters and scorecards: a reader for each library, and one writer of ONNX."""
