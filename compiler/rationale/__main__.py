"""`python -m rationale`: the command `rationale`."""

from rationale_service.cli.main import app

app()
