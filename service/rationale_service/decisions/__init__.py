"""Decisions: their answers, their records, and later views of these."""
