"""README and docs: every block is run as it is typed, or says why not; every command in them exists."""
