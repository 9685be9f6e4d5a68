"""ONNX Runtime at compile time, this machine, and the gate of a one-shot graph."""
