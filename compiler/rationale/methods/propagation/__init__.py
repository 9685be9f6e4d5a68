"""Explanations by a walk back from the output, operator by operator."""
