"""What is not even collected where it is not run."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the file of schemathesis in `make test`: collecting it takes every worker ten seconds."""
    if collection_path.name == "test_schemathesis.py" and "not full and not slow" in config.option.markexpr:
        return True
    return None
