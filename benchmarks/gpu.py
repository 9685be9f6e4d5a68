"""What an explanation costs on a GPU: beside a forward pass, a walk in PyTorch, captum and SHAP on that card.

    python -m benchmarks.gpu [MODEL …] [--references K] [--seconds 200] [--json FILE]

Runs on CUDA if ONNX Runtime finds a GPU, under four minutes in all; else on the CPU provider, with fewer
references for images and tokens. Networks have random weights, the same for all systems.

Each line of the table is one entry, written to a folder and loaded with the gateway's providers, in a process
of its own. The systems answer in turn, N = 1, and ratios are medians over the rounds:

    probe rows  how far its answers to its probe rows are from those that are due, of an output's range:
                above 1e-3 no gateway would serve it there
    ours        milliseconds of a prediction with its explanation
    / forward   ours over the plain model's pass of 1 + K rows on the same provider; ONNX Runtime has kernels
                of trees for the CPU alone
    walk /      the same rules written in PyTorch over ours: eager autograd functions, 1 + K rows both ways
    captum /    captum.attr.DeepLiftShap over ours
    SHAP /      shap.DeepExplainer over ours; of trees shap.TreeExplainer, on the CPU

A cell says so if a system is missing, fails or has no way to explain the model; a star marks values that
differ from ours by more than 0.1% of the largest. Lines below the table give the reasons. TF32 is off for all
systems, as in the gateway, and inputs lie in the card's memory.
"""

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks import trees
from benchmarks.arguments import parser_of, positive
from rationale import DeepShap, Deployment, TreeShap, compile_model
from rationale.artifact.compiled import Compiled
from rationale.bench.cases import CAPTUM, FORWARD, OURS, SHAP, Case
from rationale.bench.device import on_device, torch_device
from rationale.bench.exact import walk
from rationale.bench.measure import PACKAGES, machine, versions
from rationale.bench.peers import EXPLAINERS, Explain, misses, quietly
from rationale.bench.process import ProcessDiedError, in_a_process, memory_kept
from rationale.bench.subjects import best_threads, make_subject
from rationale.bench.timing import BLOCK_S, REST_S, System, alternate, quartiles, ratio
from rationale.errors import RationaleError
from rationale.schema.machine import LARGE_BLOCKS, Provider, available_cores
from rationale.schema.probes import Probes
from rationale.terminal import reporting_errors
from rationale_service.engine.backends.devices import CPU, CUDA_PROVIDER, gpu_count, providers

WALK, TREES = "walk", "trees"
PEERS = (WALK, CAPTUM, SHAP)
FEW = {"cuda": 10, "cpu": 4}  # references K of images and tokens
CASES = (
    Case("credit", (24,), 100),
    Case("credit", (24,), 1000),
    Case(TREES, (trees.FEATURES,), 100),
    Case("efficientnetb0", (3, 224, 224), 0),
    Case("resnet50", (3, 224, 224), 0),
    Case("vgg16", (3, 224, 224), 0),
    Case("bert-base", (128, 768), 0),
)
MODELS = tuple(dict.fromkeys(case.model for case in CASES))
TREE_ROWS = 256  # in turn: one row again and again would be answered from caches
ROUNDS = 15  # at most
AGREEMENT = 1e-3  # of the largest attribution
REASON = 160  # characters
JSON_VERSION = 1
LABEL = 32  # characters


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        probe_difference: largest difference on the entry's probe rows, as a share of an output's range.
        times_s: seconds of each call, by system and round.
        left_out: why a system has no times. The first word is for its cell.
        differences: largest difference between a peer's attributions and ours, over our largest, by peer.
        notes: differences between a peer's rules and ours, in words.
        prepared_s: until all systems could answer.
    """

    case: Case
    probe_difference: float | None = None
    times_s: dict[str, list[list[float]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    prepared_s: float = 0.0

    @property
    def ours_ms(self) -> tuple[float, float, float]:
        """Return the quartiles over the rounds."""
        return quartiles([1e3 * float(np.median(turn)) for turn in self.times_s[OURS]])

    @property
    def ratios(self) -> dict[str, float]:
        """Return our time over the forward pass's, and each peer's over ours; medians."""
        ours = self.times_s.get(OURS, [])
        return {
            name: (ratio(ours, times) if name == FORWARD else ratio(times, ours)).median
            for name, times in self.times_s.items()
            if name != OURS
        }

    @property
    def label(self) -> str:
        shape = f"{trees.TREES} × depth {trees.DEPTH}, K={self.case.references}"
        return f"{TREES} {shape}" if self.case.model == TREES else self.case.label


# -- what is compared ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An entry and the peers that explain the same model.

    Attributes:
        rows: [M, …], asked one by one; references: [K, …].
        peers: by name, a function that makes the system ready.
        notes: differences between a peer's rules and ours, in words.
    """

    compiled: Compiled
    rows: np.ndarray
    references: np.ndarray
    peers: Mapping[str, Callable[[], System]]
    notes: Sequence[str] = ()


def compare_network(case: Case, provider: Provider, threads: int) -> Comparison:
    """Compile a network for DeepSHAP of the predicted output; its peers explain the same output."""
    subject = make_subject(case, 0)
    rows, references = subject.rows.numpy(), subject.references.numpy()
    method, deployment = DeepShap(references), Deployment(provider, threads)
    compiled = compile_model(subject.model, method, targets="predicted", deployment=deployment)
    row, on_card = on_device(subject.rows), on_device(subject.references)

    def walker() -> Explain:
        explain = walk(on_device(deepcopy(subject.network)), on_card)
        return lambda x: explain(x).cpu().numpy()

    def ready(make: Callable[[], Explain]) -> System:
        run, prepare = best_threads(lambda: partial(make(), row), subject, threads)
        return System("", run, prepare, run)

    makers = {WALK: walker} | {
        name: partial(make, subject.network, on_card) for name, make in EXPLAINERS.items()
    }
    peers = {name: partial(ready, makers[name]) for name in PEERS}
    return Comparison(compiled, rows, references, peers, misses(subject.network))


def compare_trees(case: Case, provider: Provider, threads: int) -> Comparison:
    """Compile boosted trees for TreeSHAP, beside `shap.TreeExplainer`."""
    with quietly():
        booster, model = trees.trained("xgboost")
    given = trees.data()[2]
    references, rows = given[: case.references], given[-TREE_ROWS:]

    def tree_explainer() -> System:
        explain, turns = trees.by_shap(booster, references), itertools.cycle(rows[:, None])
        return System("", lambda: explain(next(turns)), explain=lambda: explain(rows[:1]))

    compiled = compile_model(model, TreeShap(references), deployment=Deployment(provider, threads))
    return Comparison(compiled, rows, references, {SHAP: tree_explainer})


# -- an entry and its runtime ----------------------------------------------------------------------------


def open_session(entry: Path, device: str, threads: int) -> ort.InferenceSession:
    """Open an entry's graph with the gateway's providers.

    Raises:
        RationaleError: if CUDA cannot be started; ONNX Runtime would go on with the CPU.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(*LARGE_BLOCKS)
    session = ort.InferenceSession(entry / "1/model.onnx", options, providers=providers(device))
    if device != CPU and CUDA_PROVIDER not in session.get_providers():
        raise RationaleError(
            "ONNX Runtime cannot start CUDA: install the CUDA and cuDNN that it was built for."
        )
    return session


def binding_run(
    session: ort.InferenceSession, device: str, batches: Sequence[np.ndarray]
) -> Callable[[], Any]:
    """Return a call that answers the next of `batches` on the device, and copies the outputs back."""
    kind, _, number = device.partition(":")
    place = (kind, int(number or 0))
    (given,), bound = session.get_inputs(), []
    for batch in batches:
        value, binding = ort.OrtValue.ortvalue_from_numpy(batch, *place), session.io_binding()
        binding.bind_ortvalue_input(given.name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, *place)
        bound.append((value, binding))  # on the CPU, the value owns what is bound
    turns = itertools.cycle(bound)

    def run() -> Any:
        _, binding = next(turns)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return run


def probe_difference(entry: Path, session: ort.InferenceSession) -> float:
    """Return how far a session's answers to the entry's probe rows are from those that are due.

    It is of an output's range: above 1e-3, no gateway would serve the entry on this device.
    """
    probes = Probes.read(entry / "1", promised=True)
    assert probes is not None
    names = [output.name for output in session.get_outputs()]
    answers = session.run(names, probes.feeds)
    return probes.compare(dict(zip(names, answers, strict=True))).value


# -- measuring -------------------------------------------------------------------------------------------


def measure(case: Case, device: str, threads: int, seconds: float) -> Line:
    """Compare one entry with its peers, in rounds that end after about `seconds` in all."""
    began = time.monotonic()
    torch.backends.cudnn.allow_tf32 = False  # as in the gateway
    torch.backends.cudnn.benchmark = True  # ONNX Runtime tries all algorithms, too
    compared = (compare_trees if case.model == TREES else compare_network)(case, _provider(device), threads)
    with tempfile.TemporaryDirectory() as folder:
        entry = compared.compiled.write(folder, "model")
        session = open_session(entry, device, threads)
        plain = open_session(Path(folder, "model"), device, threads)
        probes = probe_difference(entry, session)
    explain = binding_run(session, device, np.split(compared.rows, len(compared.rows)))
    forward = binding_run(plain, device, [np.concatenate([compared.rows[:1], compared.references])])
    place = [output.name for output in session.get_outputs()].index("x_attributions")
    peers, differences, left_out = _peers(compared, explain()[place])
    systems = [System(OURS, explain), System(FORWARD, forward), *peers]
    prepared_s = time.monotonic() - began
    rounds = (seconds - prepared_s) / sum(map(_seconds, systems)) - 2  # this one, and an uncounted turn each
    times = alternate(systems, min(max(int(rounds), 1), ROUNDS))
    return Line(case, probes, times, left_out, differences, tuple(compared.notes), prepared_s)


def _peers(compared: Comparison, ours: np.ndarray) -> tuple[list[System], dict[str, float], dict[str, str]]:
    """Return the peers that answer, how far each is from ours, and why others do not."""
    ready, differences = [], {}
    left_out = {name: "none: it explains no trees" for name in PEERS if name not in compared.peers}
    for name, make in compared.peers.items():
        try:
            system = replace(make(), name=name)
            assert system.explain is not None
            differences[name] = float(np.abs(system.explain() - ours[:, 0]).max() / np.abs(ours).max())
            ready.append(system)
        except Exception as error:  # a peer's own: the others are compared
            left_out[name] = _reason(error)
    return ready, differences, left_out


def _seconds(system: System) -> float:
    """Return about how long a turn takes."""
    began = time.perf_counter()
    system.run()
    return max(time.perf_counter() - began, BLOCK_S) + REST_S


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"missing: pip install {error.name}"
    if isinstance(error, NotImplementedError):
        return f"none: {error}"
    said = (str(error).strip() or "no message").splitlines()[0]
    return f"failed: {type(error).__name__}: {said[:REASON]}"


# -- a table and a file ----------------------------------------------------------------------------------

WIDTHS = {
    "probe rows": 12,
    "ours ms": 10,
    "/ forward": 11,
    "walk /": 10,
    "captum /": 10,
    "SHAP /": 10,
    "rounds": 8,
}
HEADS = f"{'':{LABEL}}" + "".join(f"{head:>{width}}" for head, width in WIDTHS.items())


def row_of(line: Line) -> str:
    """Return a line of the table."""
    if OURS in line.left_out:
        return f"{line.label:{LABEL}}  {_cell(line, OURS)}"
    cells = (
        f"{line.probe_difference:.1e}",
        f"{line.ours_ms[1]:.4g}",
        *(_cell(line, name) for name in (FORWARD, *PEERS)),
        str(len(line.times_s[OURS])),
    )
    return f"{line.label:{LABEL}}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS.values(), strict=True)
    )


def _cell(line: Line, name: str) -> str:
    """Return a ratio, or the word for why there is none."""
    if name in line.left_out:
        return line.left_out[name].partition(":")[0]
    star = "*" if line.differences.get(name, 0.0) > AGREEMENT else ""
    return f"{line.ratios[name]:.2f}{star}"


def reasons(line: Line) -> list[str]:
    """Return why cells are empty, and how far values are from ours."""
    differ = {name: off for name, off in line.differences.items() if off > AGREEMENT}
    known = "".join(f"; it {note}" for note in line.notes)
    return [
        *(f"{line.label}: {name} {why}" for name, why in line.left_out.items()),
        *(
            f"{line.label}: * {name} differs from ours by {off:.2g} times the largest attribution"
            f"{known if name in EXPLAINERS else ''}"
            for name, off in differ.items()
        ),
    ]


def contents(lines: Sequence[Line], device: str, seconds: float) -> dict[str, Any]:
    """Return --json: times in seconds, ratios of medians, differences over the largest value."""
    return {
        "version": JSON_VERSION,
        "machine": {**machine(), "provider": device},
        "versions": versions((*PACKAGES, "onnxruntime-gpu", "xgboost")),
        "seconds": seconds,
        "lines": [
            {
                "label": line.label,
                "ours_ms": line.ours_ms if line.times_s else None,
                "ratios": line.ratios,
                **asdict(line),
            }
            for line in lines
        ],
    }


def measured(cases: Sequence[Case], device: str, threads: int, seconds: float) -> Iterator[Line]:
    """Yield a line for each case; they share the seconds, and those that cannot begin in time say so."""
    ends = time.monotonic() + seconds
    for done, case in enumerate(cases):
        left = ends - time.monotonic()
        if left <= 0:
            yield Line(case, left_out={OURS: f"left out: the {seconds:.0f} s of --seconds were up"})
            continue
        try:
            yield in_a_process(measure, case, device, threads, left / (len(cases) - done))
        except ProcessDiedError as error:
            yield Line(case, left_out={OURS: f"failed: {str(error)[:REASON]}"})


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, and write the file."""
    parser = parser_of(__doc__, MODELS, many=True)
    parser.add_argument(
        "--references",
        type=positive,
        help="K (credit: 100 and 1000, trees: 100, others: 10, or 4 on the CPU)",
    )
    parser.add_argument(
        "--seconds", type=positive, default=200, help="in all; a line that has begun is finished (200)"
    )
    parser.add_argument(
        "--threads", type=positive, default=available_cores(), help="of every system (all cores)"
    )
    parser.add_argument("--json", type=Path, help="write each time to this file", metavar="FILE")
    asked = parser.parse_args(given)
    device = "cuda:0" if gpu_count() else CPU
    cases = [
        replace(case, references=asked.references or case.references or FEW[_provider(device)])
        for case in CASES
        if not asked.models or case.model in asked.models
    ]
    os.environ.update(memory_kept(os.environ))  # for the processes of the lines
    lines = []
    with reporting_errors():
        print(f"{device}, ONNX Runtime {ort.__version__}, PyTorch on {torch_device()}\n\n{HEADS}", flush=True)
        for line in measured(list(dict.fromkeys(cases)), device, asked.threads, asked.seconds):
            lines.append(line)
            print(row_of(line), flush=True)
            if asked.json:  # what is measured is kept if a later line ends the run
                asked.json.write_text(json.dumps(contents(lines, device, asked.seconds), indent=1))
        for reason in (reason for line in lines for reason in reasons(line)):
            print(reason)


def _provider(device: str) -> Provider:
    return "cpu" if device == CPU else "cuda"


if __name__ == "__main__":
    main()
