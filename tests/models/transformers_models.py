"""Small transformers with random weights, by both of PyTorch's exporters."""

import contextlib
import functools
import io
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.networks import import_torchvision

VOCABULARY, LENGTH, CLASSES = 53, 7, 3
SOUND = 400  # samples of a recording
_COMMON = {"vocab_size": VOCABULARY, "attn_implementation": "sdpa", "num_labels": CLASSES}
_EAGER = {**_COMMON, "attn_implementation": "eager"}
_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
_IMAGES = {**_BERT, "image_size": 32, "patch_size": 8, "num_labels": CLASSES}
_AUDIO = {
    **{k: v for k, v in _BERT.items() if k != "max_position_embeddings"},
    "num_labels": CLASSES,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "classifier_proj_size": 16,
    "conv_depthwise_kernel_size": 5,
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertConfig", "BertForSequenceClassification", {**_COMMON, **_BERT}),
    "BERT, eager": (
        "BertConfig",
        "BertForSequenceClassification",
        {**_EAGER, **_BERT},
    ),
    "GPT-2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {**_COMMON, **_SPECIAL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
    ),
    "Llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_COMMON, **_SPECIAL, **_BERT, "num_key_value_heads": 2},
    ),
    "ViT": (
        "ViTConfig",
        "ViTForImageClassification",
        {**_BERT, "image_size": 24, "patch_size": 8, "num_labels": CLASSES},
    ),
    "Swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": CLASSES,
        },
    ),
    "RoBERTa": ("RobertaConfig", "RobertaForSequenceClassification", {**_COMMON, **_BERT, "pad_token_id": 0}),
    "DistilBERT": (
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        {**_COMMON, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 16},
    ),
    "ALBERT": (
        "AlbertConfig",
        "AlbertForSequenceClassification",
        {**_COMMON, **_BERT, "embedding_size": 16},
    ),
    "ELECTRA": (
        "ElectraConfig",
        "ElectraForSequenceClassification",
        {**_COMMON, **_BERT, "embedding_size": 16},
    ),
    "DeBERTa": (
        "DebertaV2Config",
        "DebertaV2ForSequenceClassification",
        {
            **_BERT,
            "vocab_size": VOCABULARY,
            "num_labels": CLASSES,
            "relative_attention": True,
            "position_buckets": 4,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
        },
    ),
    "MPNet": ("MPNetConfig", "MPNetForSequenceClassification", {**_EAGER, **_BERT, "pad_token_id": 0}),
    "XLNet": (
        "XLNetConfig",
        "XLNetForSequenceClassification",
        {**_EAGER, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
    "OPT": (
        "OPTConfig",
        "OPTForCausalLM",
        {**_COMMON, **_SPECIAL, **_BERT, "ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**_COMMON, **_SPECIAL, **_BERT, "num_key_value_heads": 2}),
    "BLOOM": (
        "BloomConfig",
        "BloomForCausalLM",
        {**_EAGER, **_SPECIAL, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "Mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "state_size": 4,
            "use_cache": False,
        },
    ),
    "T5 encoder": (
        "T5Config",
        "T5EncoderModel",
        {**_COMMON, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    ),
    "CLIP text": (
        "CLIPTextConfig",
        "CLIPTextModelWithProjection",
        {**_BERT, "vocab_size": VOCABULARY, "projection_dim": 16, "eos_token_id": 2},
    ),
    "CLIP vision": ("CLIPVisionConfig", "CLIPVisionModelWithProjection", {**_IMAGES, "projection_dim": 16}),
    "DINOv2": ("Dinov2Config", "Dinov2ForImageClassification", _IMAGES),
    "Wav2Vec2": ("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", _AUDIO),
    "Conformer": ("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerForSequenceClassification", _AUDIO),
}
_ANSWERS = ("logits", "text_embeds", "image_embeds", "last_hidden_state")


@dataclass(frozen=True)
class Exported:
    """A network, its export, and rows: references [K, …] of the first input and x by input name."""

    network: torch.nn.Module
    model: onnx.ModelProto
    references: np.ndarray
    x: dict[str, np.ndarray]


class _Logits(torch.nn.Module):
    """Positional inputs, and the logits or the embedding alone."""

    def __init__(self, network: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        answer = self.network(**dict(zip(self.names, inputs, strict=True)))
        logits: torch.Tensor = answer[next(name for name in _ANSWERS if name in answer)]
        return logits


@functools.cache
def transformer(name: str, *, dynamo: bool, rows: int = 3, references: int = 2) -> Exported:
    """One of MODELS, exported with a dynamic batch: once for all tests of a process."""
    import_torchvision()  # first, because transformers imports it
    import transformers

    config_name, model_name, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**options)
    network = getattr(transformers, model_name)(config)
    _redraw(network)
    random = np.random.default_rng(1)
    if "image_size" in options:
        size = options["image_size"]
        drawn = random.standard_normal((rows + references, 3, size, size)).astype(np.float32)
        x, names = {"pixels": drawn[references:]}, ("pixel_values",)
    elif "conv_dim" in options:
        drawn = random.standard_normal((rows + references, SOUND)).astype(np.float32)
        x, names = {"sound": drawn[references:]}, ("input_values",)
    else:
        drawn = random.integers(3, VOCABULARY, (rows + references, LENGTH))
        mask = np.ones((rows, LENGTH), np.int64)
        mask[1, 5:] = 0
        x, names = {"ids": drawn[references:], "mask": mask}, ("input_ids", "attention_mask")
    whole = _Logits(network, names).eval()
    return Exported(whole, export(whole, x, dynamo=dynamo), drawn[:references], x)


def _redraw(network: torch.nn.Module) -> None:
    """Transformers start with weights near 0, through which no signal passes."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim >= 2:
                table = any(word in name for word in ("embed", "wte", "wpe"))
                weight.normal_(std=1.0 if table else 1.5 / weight[0].numel() ** 0.5)


def export(network: torch.nn.Module, x: dict[str, np.ndarray], *, dynamo: bool) -> onnx.ModelProto:
    """A network of inputs by name, with a dynamic batch; its output is called logits."""
    example = tuple(torch.from_numpy(a[:2]) for a in x.values())
    options: dict[str, Any] = {"input_names": list(x), "output_names": ["logits"]}
    if dynamo:
        batch = torch.export.Dim("batch")
        shapes = {"inputs": tuple({0: batch} for _ in x)}
        options |= {"dynamo": True, "dynamic_shapes": shapes, "external_data": False, "verbose": False}
    else:
        options |= {"dynamo": False, "dynamic_axes": {name: {0: "batch"} for name in x}}
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")  # both exporters warn about themselves
        path = Path(folder) / "model.onnx"
        torch.onnx.export(network, example, path, **options)
        return onnx.load(path)
