"""Build and check a release in `dist/`: `make release`.

It builds wheel and sdist, which twine checks, and lists the components of the images' lock files as CycloneDX
documents. Then it looks them up among the known vulnerabilities. If that service cannot be reached, it says
so and fails: the release is built, and not audited.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LOCKS = ("requirements.lock", "requirements-gpu.lock")

PLACEHOLDER = "* @maintainers"
_LATER = "The files in dist/ are complete: run `make release` again where it can be reached."

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class ReleaseError(Exception):
    """An error that says why there is no release, or why it is not audited."""


def version() -> str:
    """Return the version in pyproject.toml, the only place where it is decided."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def check_changelog(text: str, release: str) -> None:
    """Raise ReleaseError unless the changelog has a dated heading of the release."""
    if not re.search(rf"^## {re.escape(release)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no heading `## {release} (YYYY-MM-DD)`: cut the version first.")


def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a tool of this environment."""
    tool = [sys.executable, "-m", *command]
    return subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, check=False)


def demand(command: Sequence[str], run: Run = run) -> None:
    """Run a tool; raise ReleaseError with its last lines if it fails."""
    done = run(command)
    if done.returncode:
        raise ReleaseError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def audit(lock: str, run: Run = run) -> int:
    """Look up a lock file's packages among the known vulnerabilities; return their number.

    Raises:
        ReleaseError: if one is vulnerable, or if nobody answered.
    """
    done = run(["pip_audit", "--requirement", lock, "--no-deps", "--disable-pip", "--format", "json"])
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise ReleaseError(
            f"{lock}: NOT AUDITED, since the service of known vulnerabilities did not answer "
            f"({reason[:300]}). {_LATER}"
        ) from None
    skipped = [each["name"] for each in found if "skip_reason" in each]
    if skipped:
        some = f"{', '.join(skipped[:5])}{', …' if len(skipped) > 5 else ''}"
        raise ReleaseError(
            f"{lock}: NOT AUDITED, since the service of known vulnerabilities told nothing of "
            f"{len(skipped)} of {len(found)} packages ({some}). {_LATER}"
        )
    faults = [f"{each['name']} {each['version']}: {v['id']}" for each in found for v in each["vulns"]]
    if faults:
        listed = "\n".join(faults)
        raise ReleaseError(f"{lock}: known vulnerabilities, `make lock` takes newer versions:\n{listed}")
    return len(found)


def main() -> int:
    try:
        check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version())
        shutil.rmtree(DIST, ignore_errors=True)
        demand(["build", "--outdir", str(DIST)])
        demand(["twine", "check", "--strict", *map(str, sorted(DIST.iterdir()))])
        print(*(f"built and checked: {path.name}" for path in sorted(DIST.iterdir())), sep="\n")
        for lock in LOCKS:
            document = DIST / f"{Path(lock).stem}.cdx.json"
            demand(["cyclonedx_py", "requirements", lock, "--output-file", str(document)])
            components = json.loads(document.read_text(encoding="utf-8"))["components"]
            print(f"{document.name}: {len(components)} components of {lock}")
        if PLACEHOLDER in (ROOT / "CODEOWNERS").read_text(encoding="utf-8").splitlines():
            print("CODEOWNERS: a placeholder. Name your maintainers, or reports by SECURITY.md reach nobody.")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return max(map(audited, LOCKS))


def audited(lock: str) -> int:
    """Print the result of an audit; return 1 if it failed."""
    try:
        print(f"{lock}: {audit(lock)} packages without a known vulnerability")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
