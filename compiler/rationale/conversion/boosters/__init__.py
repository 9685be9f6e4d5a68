"""Sums of trees, of boosters and scorecards: read as each library keeps them, written as ONNX in one way."""
