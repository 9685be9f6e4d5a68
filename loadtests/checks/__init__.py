"""Commands that each put one kind of load on the gateway, and check that it withstands it."""
