"""Keys and scopes, rate limits, TLS, and files that are read again when they change."""
