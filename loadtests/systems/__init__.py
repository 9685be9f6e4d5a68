"""The servers that are asked, as child processes: the gateway, the baselines, and the least that answers."""
