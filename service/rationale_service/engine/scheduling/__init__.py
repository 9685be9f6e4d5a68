"""Scheduling of requests: batches, deadlines and cores."""
