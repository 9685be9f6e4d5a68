"""Recourse: the values at which a decision flips, and the cheapest changes that flip it."""
