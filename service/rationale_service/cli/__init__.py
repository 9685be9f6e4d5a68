"""The gateway's commands: serve, keys, demo, Triton in a container."""
