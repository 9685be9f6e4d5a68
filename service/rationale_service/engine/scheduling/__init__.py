"""Batches, deadlines and cores: when a request runs, and with which others."""
