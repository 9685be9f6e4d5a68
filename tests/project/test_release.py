"""`make release`: the version in one place, the changelog, and an audit that says if nobody answered."""

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("release_script", ROOT / "scripts/release.py")
release: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(release)


def answering(stdout: str, stderr: str = "", status: int = 0) -> Any:
    return lambda command: subprocess.CompletedProcess(command, status, stdout, stderr)


def test_every_file_has_the_version_of_pyproject() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/rationale/Chart.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    kernels = tomllib.loads((ROOT / "kernels/pyproject.toml").read_text())["project"]["version"]
    kserve = "".join(path.read_text() for path in (ROOT / "deploy/kserve").glob("*.yaml"))
    versions = {chart["version"], chart["appVersion"], citation["version"], kernels}
    assert versions | set(re.findall(r"image: rationale:(\S+)", kserve)) == {release.version()}


def test_the_changelog_has_the_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    release.check_changelog(text, release.version())
    date = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    assert f"## {release.version()} ({date})\n" in text
    with pytest.raises(release.ReleaseError, match="cut the version first"):
        release.check_changelog("## Unreleased\n", "0.1.0")


def test_an_audit_counts_names_and_says_if_nobody_answered() -> None:
    sound = {"name": "a", "version": "1", "vulns": []}
    faulty = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}]}
    unknown = {"name": "c", "skip_reason": "not found"}
    assert release.audit("lock", answering(json.dumps({"dependencies": [sound]}))) == 1
    with pytest.raises(release.ReleaseError, match="b 2: CVE-1"):
        release.audit("lock", answering(json.dumps({"dependencies": [sound, faulty]}), status=1))
    with pytest.raises(release.ReleaseError, match=r"NOT AUDITED.* 1 of 2 packages \(c\)"):
        release.audit("lock", answering(json.dumps({"dependencies": [sound, unknown]})))
    with pytest.raises(release.ReleaseError, match=r"NOT AUDITED.*timed out"):
        release.audit("lock", answering("", "timed out", 1))
