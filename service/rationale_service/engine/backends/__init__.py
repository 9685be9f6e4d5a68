"""Runtimes of models: this process (ONNX Runtime) or Triton."""
