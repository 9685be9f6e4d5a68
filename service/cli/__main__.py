"""`python -m service.cli`, the command `rationale`."""

from service.cli.main import app

app()
