"""`python -m rationale`: the command `rationale`."""

from service.cli.main import app

app()
