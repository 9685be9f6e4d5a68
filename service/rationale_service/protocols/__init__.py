"""The protocols that the gateway speaks, and what guards them."""
