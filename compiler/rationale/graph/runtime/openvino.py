"""The optional run of a graph in OpenVINO; the compiler itself never needs it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from rationale.distribution import install
from rationale.errors import CheckFailedError, InvalidOptionError

_MESSAGE_END = 300  # characters at the end of OpenVINO's message, which name the node


class OpenVinoRunner:
    """A graph loaded in OpenVINO on this CPU, in float32: `runner(inputs)` returns its outputs by name.

    Args:
        model: a file, with weights beside it or in it, or a model in memory.

    Raises:
        InvalidOptionError: if openvino is not installed.
        CheckFailedError: if OpenVINO cannot load or run the graph.
    """

    def __init__(self, model: Path | onnx.ModelProto) -> None:
        try:
            import openvino
        except ImportError as error:
            raise InvalidOptionError(
                f"--runtime openvino: openvino is not installed: {install('openvino')}."
            ) from error
        self.name = f"OpenVINO {openvino.get_version().partition('-')[0]}"
        core = openvino.Core()
        proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
        if proto.functions:  # OpenVINO does not know overloads
            whole = onnx.load(model) if isinstance(model, Path) else model
            model = onnx.inliner.inline_local_functions(whole)
        try:
            read = core.read_model(model if isinstance(model, Path) else model.SerializeToString())
            self._run: Any = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            raise self._fault("load", error) from error
        self.outputs = [output.name for output in proto.graph.output]  # all names, even of one value

    def __call__(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        try:
            answer = self._run(dict(inputs))
        except RuntimeError as error:
            raise self._fault("run", error) from error
        requested = self.outputs if outputs is None else outputs
        return {name: np.array(answer[i]) for i, name in enumerate(self.outputs) if name in requested}

    def _fault(self, doing: str, error: Exception) -> CheckFailedError:
        message = " ".join(str(error).split())[-_MESSAGE_END:]
        return CheckFailedError(
            f"{self.name} does not {doing} the graph: … {message}. Compile it with --runtime "
            "openvino, or see docs/runtimes.md for what OpenVINO lacks."
        )
