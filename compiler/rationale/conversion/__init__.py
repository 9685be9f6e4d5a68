"""Conversion of other libraries' fitted models to ONNX, and a comparison of their answers."""
