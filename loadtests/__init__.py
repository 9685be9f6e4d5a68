"""Load on the gateway, and what it costs: each module is a command (`python -m loadtests.NAME --help`)."""
