"""Servers under load, as child processes: the gateway, the baselines, and minimal servers."""
