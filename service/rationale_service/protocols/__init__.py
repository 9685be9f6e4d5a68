"""The gateway's protocols, and their common guards."""
