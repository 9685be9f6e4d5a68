"""The command line that concerns the gateway: serve, keys, demo, Triton in a container."""
