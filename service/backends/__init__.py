"""Where models run: in this process (embedded) or in Triton."""
