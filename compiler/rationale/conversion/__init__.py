"""Fitted models of other libraries, converted to ONNX and compared with what they answer themselves."""
