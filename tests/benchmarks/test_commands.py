"""The commands behind figures that no other test runs, at their least."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as explanations
from benchmarks import memory, one_shot, portfolio, profile, recourse
from benchmarks.cases import parser_of
from benchmarks.console import portfolio as console_portfolio

CREDIT = Path(__file__).parents[2] / "examples/credit/credit.onnx"
CHUNKS = "efficientnetb0 --size 64 --references 20 --budget 160MB"
PORTABLE = "credit-softmax --references 5 --rows 1 --repeats 1 --peers openvino,portable,kernel"
COMMANDS: dict[str, tuple[Callable[[list[str]], None], str, str]] = {
    "console_portfolio": (console_portfolio.main, "csv --rows 500 --turns 1", "csv "),
    "other runtimes": (explanations.main, PORTABLE, "openvino "),
    "trees": (explanations.main, "xgboost --references 2 --rows 1 --repeats 1", "contributions"),
    "memory": (memory.main, "credit --references 2 --peers shap", "shap "),
    "chunks": (memory.main, f"{CHUNKS} --peers=", "recomputed"),
    "one_shot": (one_shot.main, f"{CREDIT} --rounds 2 --threads 1", "explain=true: "),
    "portfolio": (portfolio.main, "credit --rows 10 --turns 1 --bare-rows 100", "credit "),
    "recourse": (recourse.main, "words --rows 2 --peer-rows 1", "0 wrong, 0 frozen"),
    "profile": (profile.main, "credit --references 2", "the longest nodes of the explanation"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_its_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, arguments, expected = COMMANDS[name]
    main(arguments.split())
    assert expected in capsys.readouterr().out


def test_nothing_is_timed_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        profile.main(["credit", "--threads", "0"])
    assert "must be 1 or more" in capsys.readouterr().err


def test_many_models_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of("", ("credit", "trees"), many=True)
    assert parser.parse_args([]).models == []
    assert parser.parse_args(["trees"]).models == ["trees"]
    with pytest.raises(SystemExit):
        parser.parse_args(["tree"])
    assert "choose from credit, trees, not 'tree'" in capsys.readouterr().err
