"""The gateway beside a bare loop: every kind of request has its turn, and its answers are compared."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from loadtests import throughput
from loadtests.closed_load import Load, count, request_for
from loadtests.throughput import Bench, Turn, measure, prepared, report


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with prepared(width=16, references=5, rows=(1, 3), cores=1, connections=2) as made:
        yield made


def test_every_kind_of_request_has_its_turn(bench: Bench) -> None:
    turns = list(measure(bench, rounds=1, seconds=0.1))
    assert [(turn.rows, turn.protocol) for turn in turns] == [
        (rows, protocol) for rows in (1, 3) for protocol in throughput.PROTOCOLS
    ]
    assert all(turn.rate > 0 and turn.client_share > 0 for turn in turns)
    assert len({turn.loop_rate for turn in turns}) == 2, "the three protocols share the loop's turn"


@pytest.mark.parametrize("protocol", throughput.PROTOCOLS)
def test_another_answer_than_the_loops_ends_the_run(bench: Bench, protocol: throughput.Protocol) -> None:
    class Other:
        def get_outputs(self) -> object:
            return bench.loop.session.get_outputs()

        def run(self, _: object, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [1.01 * output for output in bench.loop.session.run(None, inputs)]

    with pytest.raises(RuntimeError, match="another than that of ONNX Runtime alone"):
        replace(bench, loop=replace(bench.loop, session=Other())).asked(protocol, 3, 0.01)


@pytest.mark.parametrize("protocol", throughput.PROTOCOLS)
def test_a_refusal_ends_the_run(bench: Bench, protocol: throughput.Protocol) -> None:
    address = (bench.server.grpc if protocol == "grpc" else bench.server.http) or ""
    request = request_for(protocol, address, "missing", bench.inputs[1])
    with pytest.raises(RuntimeError, match="missing"):
        count(Load(protocol, address, request, 1), 0.01)


def test_ratios_are_taken_in_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    report([Turn("json", 16, rate, loop, 0.02) for rate, loop in ((80, 100), (9, 10), (5, 10))])
    line = "json    16 rows: 0.80 of the bare loop (0.65–0.85); 9 of 10 rows/s, the client took 2% of a core"
    assert capsys.readouterr().out.strip() == line
