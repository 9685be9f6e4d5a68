"""Where models run: in this process (ONNX Runtime) or in Triton."""
