"""Requests of a load: their models, rates and expected answers."""
