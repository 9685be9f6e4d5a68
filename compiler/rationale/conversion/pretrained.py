"""Hugging Face: classifiers of texts and images, from the folder that `save_pretrained` wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification, AutoTokenizer

from rationale.conversion import torch as torch_modules
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features
from rationale.errors import InvalidModelError, UnsupportedModelError

LONGEST = 128  # tokens of a row; shorter ones are filled up, and masked
LABEL = "label"
_TEXT, _IMAGE = "ForSequenceClassification", "ForImageClassification"
_WEIGHTS = ("*.safetensors", "*.bin")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}  # no download, no code of the folder


def read_folder(folder: Path) -> torch.nn.Module:
    """Read the classifier in a folder; nothing is downloaded, and no code in the folder runs.

    Raises:
        InvalidModelError: if it has no weights, or lacks the tokenizer or the image processor.
        UnsupportedModelError: if it classifies neither texts nor images.
    """
    config = _json(folder / "config.json")
    architecture = str(([*(config.get("architectures") or ())] or ["none"])[0])
    if not architecture.endswith((_TEXT, _IMAGE)):
        raise UnsupportedModelError(
            f"{folder}: {architecture} is neither …{_TEXT} nor …{_IMAGE}: export it by torch.onnx, and "
            "compile that file."
        )
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise InvalidModelError(
            f"{folder}: has no weights ({' or '.join(_WEIGHTS)}): save the model by save_pretrained."
        )
    is_text = architecture.endswith(_TEXT)
    beside = ("tokenizer.json", "tokenizer_config.json") if is_text else ("preprocessor_config.json",)
    if not any((folder / name).is_file() for name in beside):
        raise InvalidModelError(
            f"{folder}: has no {' or '.join(beside)}: save the model's "
            f"{'tokenizer' if is_text else 'image processor'} there too, by save_pretrained."
        )
    kind: Any = AutoModelForSequenceClassification if is_text else AutoModelForImageClassification
    network = kind.from_pretrained(folder, **_LOCAL).float()
    if is_text:
        return TextClassifier(network, AutoTokenizer.from_pretrained(folder, **_LOCAL))
    return ImageClassifier(network, _json(folder / beside[0]))


class _Classifier(torch.nn.Module):
    """A classifier that answers logits.

    Attributes:
        example: two rows by input, with which it is exported.
        method: the method by which it is explained if none is asked for.
    """

    __module__ = "transformers"  # the name in its parity
    example: Mapping[str, np.ndarray]

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    @property
    def class_names(self) -> list[str]:
        names: Mapping[int, str] = self.network.config.id2label
        return [str(names[i]) for i in sorted(names)]

    @property
    def method(self) -> str:
        return "attnlrp" if hasattr(self.network.config, "num_attention_heads") else "lrp"


class TextClassifier(_Classifier):
    """A classifier of token ids, with the mask that the tokenizer writes beside them."""

    __module__ = "transformers"

    def __init__(self, network: Any, tokenizer: Any) -> None:
        super().__init__(network)
        most = getattr(network.config, "max_position_embeddings", LONGEST)
        length = min(LONGEST, tokenizer.model_max_length, most)
        ids = np.random.default_rng(0).integers(0, network.config.vocab_size, (2, length))
        mask = np.ones((2, length), np.int64)
        mask[1, length // 2 :] = 0
        ids[mask == 0] = tokenizer.pad_token_id or 0
        self.example = {"input_ids": ids, "attention_mask": mask}

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.network(input_ids=input_ids, attention_mask=attention_mask).logits


class ImageClassifier(_Classifier):
    """A classifier of pixels from 0 to 1, [N, C, H, W], which it scales as its image processor does."""

    __module__ = "transformers"
    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, network: Any, processor: Mapping[str, Any]) -> None:
        super().__init__(network)
        size = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
        config = network.config
        sides = size if isinstance(size, Mapping) else {"shortest_edge": size or config.image_size}
        height = sides.get("height", sides.get("shortest_edge"))
        width = sides.get("width", sides.get("shortest_edge"))
        factor = 255 * processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 255
        is_scaled = processor.get("do_normalize", True)
        mean, deviation = (processor.get(name) if is_scaled else None for name in ("image_mean", "image_std"))
        mean, deviation = (
            torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1)
            for values in (mean or [0.0], deviation or [1.0])
        )
        self.register_buffer("scale", factor / deviation, persistent=False)
        self.register_buffer("shift", -mean / deviation, persistent=False)
        if not (isinstance(height, int) and isinstance(width, int)):
            raise UnsupportedModelError(
                f"the image processor's size is {size}: write height and width of the images that the "
                "network takes into preprocessor_config.json."
            )
        shape = (2, int(getattr(config, "num_channels", 3)), height, width)
        self.example = {"pixels": np.random.default_rng(0).random(shape, np.float32)}

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.network(pixel_values=pixels * self.scale + self.shift).logits


def features(_: torch.nn.Module) -> Features:
    """Return empty features: a model knows neither names nor a count."""
    return Features(None, None)


def as_onnx(model: torch.nn.Module, example: Any) -> ConversionResult:
    """Export a model as `torch.as_onnx`; a classifier's classes are named by a label."""
    if not isinstance(model, _Classifier):
        return torch_modules.as_onnx(model, example)
    result = torch_modules.as_onnx(model, model.example if example is None else example)
    graph, names = result.proto.graph, model.class_names
    logits = graph.output[0].name
    table = onnx.numpy_helper.from_array(np.array(names, object), "class_names")
    graph.initializer.append(table)
    graph.node.append(onnx.helper.make_node("ArgMax", [logits], ["class"], axis=1, keepdims=0))
    graph.node.append(onnx.helper.make_node("Gather", ["class_names", "class"], [LABEL]))
    rows = graph.output[0].type.tensor_type.shape.dim[0].dim_param
    graph.output.append(onnx.helper.make_tensor_value_info(LABEL, onnx.TensorProto.STRING, [rows]))
    return ConversionResult(result.proto, result.feeds, (*result.answers, None), result.columns)


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"{path}: cannot be read as JSON: {error}.") from error
    if not isinstance(read, dict):
        raise InvalidModelError(f"{path}: must hold an object.")
    return read
