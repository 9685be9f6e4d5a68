"""Keys and scopes, rate limits, TLS, and files that the gateway reads again when they change."""
