"""A decision profile held against its model, and the references of its policy."""
