"""How many files a reader opens for one compile or request, as `scripts/files_passed.py` counts them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "files_passed.py"
# A compile also makes probe rows (two chapters), looks for sparse tensors, and finds chains and kernels; a
# decision shares its path with `Compiled.decide`, files and gRPC (decided.py, instances.py), and records
# which output is explained.
MOST = {"compile": 50, "explain": 20, "decide": 29}


@pytest.mark.full
def test_few_files_are_passed() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    counted = {name: int(count) for count, name in map(str.split, result.stdout.splitlines())}
    assert {name: counted[name] <= most for name, most in MOST.items()} == dict.fromkeys(MOST, True), counted
