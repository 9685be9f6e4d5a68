"""`python -m rationale`: the command `rationale`."""

from service.cli import app

app()
