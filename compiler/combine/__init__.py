"""The combined graph: values at x and at the references, the walk back, outputs."""
