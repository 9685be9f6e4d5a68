"""Tree ensembles: read from ONNX into one form, and their Shapley values as tables."""
