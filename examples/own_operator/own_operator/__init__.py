"""An operator, Snake, and an LRP rule, Absolute, for Rationale: an example to copy."""
