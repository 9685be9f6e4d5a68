"""Checks of a decision profile against its model, and the references of its policy."""
