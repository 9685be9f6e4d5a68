"""How many files a reader opens for one compile or request, as `scripts/files_passed.py` counts them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "files_passed.py"
# A compile also makes probe rows (two chapters) and looks for sparse tensors; a decision shares its path with
# `Compiled.decide`, files and gRPC (decided.py, instances.py).
MOST = {"compile": 48, "explain": 20, "decide": 28}


@pytest.mark.full
def test_few_files_are_passed() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    counted = {name: int(count) for count, name in map(str.split, result.stdout.splitlines())}
    assert {name: counted[name] <= most for name, most in MOST.items()} == dict.fromkeys(MOST, True), counted
