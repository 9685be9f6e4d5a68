"""`python -m rationale_service.cli`, the command `rationale`."""

from rationale_service.cli.main import app

app()
