"""ONNX nodes for all rows at once: tensors with batch axes, layouts, shapes, folding, kernel variants."""
