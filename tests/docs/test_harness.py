"""What is stale in a page makes its test fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rationale.errors import InvalidOptionError
from tests.docs.commands import commands, faults, unknown_flag, unknown_settings
from tests.docs.pages import Block, Page
from tests.docs.test_pages import check_sh, check_text, check_toml, run_page, why_not_run

PAGE = Path("page.md")


def fenced(language: str, *lines: str, note: str = "") -> str:
    return "\n".join([*([f"<!-- {note} -->"] if note else []), f"```{language}", *lines, "```", ""])


def page(*blocks: str) -> Page:
    return Page(PAGE, "\n\n".join(["# A page", *blocks]))


def block(*lines: str, language: str = "sh") -> Block:
    (only,) = page(fenced(language, *lines)).blocks
    return only


def test_blocks_notes_and_spans_of_a_page() -> None:
    read = page(
        fenced("sh", "make", note="not run: minutes"),
        "Say `rationale serve\n--port 1`.",
        fenced("text", "1.5"),
        "    indented",
        "<!-- of no block -->\n\nText",
        fenced("python", "x = 1", note="first: touch a"),
    )
    assert [(each.language, each.line) for each in read.blocks] == [
        ("sh", 4),
        ("text", 12),
        ("", 17),
        ("python", 24),
    ]
    assert [each.notes for each in read.blocks] == [{"not run": "minutes"}, {}, {}, {"first": "touch a"}]
    assert [text for _, text in read.spans] == ["rationale serve --port 1"]


def test_the_commands_of_a_script() -> None:
    script = 'A=1 one "two\nthree" \\\n  four  # five\nsix && seven | eight; nine $(ten)'
    assert list(commands(script)) == [
        ["one", "two\nthree", "four"],
        ["six"],
        ["seven"],
        ["eight"],
        ["nine", "$"],
        ["ten"],
    ]
    with pytest.raises(ValueError, match="without an end"):
        list(commands("one 'two"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rationale serve --prot 8080", "No such option: --prot"),
        ("rationale serv", "no command `rationale serv`"),
        ("rationale keys old", "no command `rationale keys old`"),
        ("rationale compile m.onnx --references", "requires an argument"),
        ("python -m loadtests.nothing", "no module loadtests.nothing"),
        ("python -m loadtests --profiles claim", "loadtests has no --profiles"),
        ("python scripts/nothing.py", "no scripts/nothing.py"),
        ("python scripts/mutation.py --sed 3", "scripts/mutation.py has no --sed"),
        ("make demos", "make has no demos"),
        ("make test ARG=x", "make has no ARG"),
        ("pip install '.[plot]'", "no extra plot"),
        ("pytest tests/nothing.py", "no tests/nothing.py"),
    ],
)
def test_what_does_not_exist_is_named(command: str, said: str) -> None:
    (words,) = commands(command)
    (fault,) = faults(words)
    assert said in fault
    with pytest.raises(AssertionError, match=r"page\.md:3"):
        check_sh(block(command))


@pytest.mark.parametrize(
    "command",
    [
        "rationale compile m.onnx --references r.npz --memory-budget 2GB",
        "rationale keys new NAME --scope infer --file …",
        "rationale --help",
        "python -m loadtests --profile claim --workload credit-100",
        'make test ARGS="-k name"',
        "pip install '.[gpu]'",
        "another program --with flags",
    ],
)
def test_what_exists_passes(command: str) -> None:
    check_sh(block(command))


def test_flags_and_settings_that_nothing_has() -> None:
    assert unknown_flag("--prot")
    assert not unknown_flag("--grpc-port")
    assert unknown_settings("RATIONALE_PORT, RATIONALE_PROT and RATIONALE_CONFIG") == {"RATIONALE_PROT"}


def test_commands_do_not_hide_in_output() -> None:
    with pytest.raises(AssertionError, match="commands belong in a block of `sh`"):
        check_text(block("rationale serve", language="text"))


@pytest.mark.parametrize(
    ("text", "told"),
    [("prot = 8080\n", "prot"), ('[keys.a]\nsha256 = "1"\nscopes = ["infer"]\n', "sha256")],
)
def test_settings_and_keys_are_read(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        check_toml(block(text, language="toml"), tmp_path)


def test_what_is_not_run_says_why() -> None:
    assert why_not_run(block("make demo")) == "makes environments of its own, and runs all tests"
    assert why_not_run(block("A=1 docker compose up")) == "needs a Docker engine"
    assert why_not_run(block("python -m loadtests.checks.overhead")) == "takes minutes to hours"
    assert why_not_run(block("python -m loadtestsuite")) is None
    assert why_not_run(page(fenced("sh", "true", note="not run: no reason")).blocks[0]) == "no reason"


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *blocks, slow=False: run_page(page(*blocks), tmp_path, monkeypatch, slow=slow)


def test_blocks_follow_each_other_in_one_folder(run: Run) -> None:
    run(
        fenced("sh", "cp a b", note="first: echo 7 > a"),
        fenced("sh", "rm b", note="slow: not really"),
        fenced("python", "from pathlib import Path", "number = int(Path('b').read_text())"),
        fenced("python", "assert number == 7"),
    )


@pytest.mark.parametrize(
    "stale",
    [
        fenced("sh", "false", "true"),
        fenced("sh", "false | true"),
        fenced("sh", "echo $UNSET"),
        fenced("python", "raise KeyError('gone')"),
        fenced("sh", "true", note="first: false"),
        fenced("sh", "rationale check nobody"),
        fenced("sh", "curl localhost:8080/v2"),  # nothing serves yet
    ],
)
def test_a_block_that_fails(run: Run, stale: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:\d"):
        run(stale)


def test_pip_changes_nothing(run: Run) -> None:
    run(fenced("sh", "pip install nothing-of-this-name", "touch a"), fenced("sh", "rm a"))


@pytest.mark.full
def test_serve_is_left_running_and_curl_finds_it(run: Run) -> None:
    run(
        fenced("sh", "rationale serve"),
        fenced("sh", "curl localhost:8080/v2/health/ready"),
        fenced("sh", "if curl localhost:8080/nothing; then exit 1; fi"),
        fenced("sh", "rationale serve --repository model_repository"),
        fenced("sh", "curl http://localhost:8080/v2/models/credit"),
    )
