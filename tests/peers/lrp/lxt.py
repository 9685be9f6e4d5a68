"""AttnLRP and CP-LRP beside LXT's own package, on small transformers with random weights.

    python -m tests.peers.lrp.lxt [MODEL ...]

LXT 2.1 patches the modules of transformers 4.52, and the project's tests need transformers 5: this runs in
an environment of its own, made once from the root of the checkout.

    python3 -m venv .venv/lxt
    .venv/lxt/bin/pip install -e . torch==2.13.0 torchvision==0.28.0 "transformers==4.52.*" lxt==2.1
    .venv/lxt/bin/python -m tests.peers.lrp.lxt

A line for each model and method: the largest difference of an element's relevance over the largest one, for
embeddings [N, S, E] or pixels [N, 3, H, W], and the same over the outputs of all linear layers. Ours is the
compiled float32 graph in ONNX Runtime, theirs PyTorch in float64, both with ε = 0: LXT's patches have none
but 1e-10 beside the input of an activation.
The exit status is 1 where a difference is above 2e-6, or 5e-6 for a layer.
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy as np
import onnx
import torch

from benchmarks.networks import import_torchvision
from rationale import AttnLrp, CpLrp, compile_model
from rationale.graph.runtime.session import Runner

AGREE, LAYERS_AGREE = 2e-6, 5e-6  # a layer's largest relevance may be small beside what it is a difference of
METHODS = {"AttnLRP": AttnLrp, "CP-LRP": CpLrp}
N, S, E, IMAGE = 3, 7, 32, 24
TARGETS = [1, 3]
BLOCKS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": E, "intermediate_size": 48}
TOKENS = {"vocab_size": 53, "pad_token_id": 0, "attn_implementation": "eager"}
DECODER = {**BLOCKS, **TOKENS, "num_key_value_heads": 2, "max_position_embeddings": 16, "use_cache": False}
GPT2 = {**TOKENS, "n_embd": E, "n_layer": 2, "n_head": 4, "n_positions": 16, "use_cache": False}
VIT = {**BLOCKS, "image_size": IMAGE, "patch_size": 8, "num_labels": 5, "attn_implementation": "eager"}
TORCHVISION = {"num_layers": 2, "num_heads": 4, "hidden_dim": E, "mlp_dim": 48}
TORCHVISION |= {"image_size": IMAGE, "patch_size": 8, "num_classes": 5}


@dataclass(frozen=True)
class Model:
    """A class of a modelling module, its options (of a configuration, where it reads one), and its input."""

    module: str
    name: str
    options: Mapping[str, Any]
    config: str | None = None
    reads: str = "inputs_embeds"
    methods: tuple[str, ...] = tuple(METHODS)


def of_transformers(family: str, name: str, config: str, options: Mapping[str, Any], **more: Any) -> Model:
    return Model(f"transformers.models.{family}.modeling_{family}", name, options, config, **more)


MODELS = {
    "Llama": of_transformers("llama", "LlamaForCausalLM", "LlamaConfig", DECODER),
    "Qwen2": of_transformers("qwen2", "Qwen2ForCausalLM", "Qwen2Config", DECODER),
    "Qwen3": of_transformers("qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 8}),
    "Gemma 3": of_transformers(
        "gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", {**DECODER, "head_dim": 8, "sliding_window": 4}
    ),
    "GPT-2": of_transformers("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2),
    "BERT": of_transformers(
        "bert", "BertForSequenceClassification", "BertConfig", {**BLOCKS, **TOKENS, "num_labels": 5}
    ),
    "ViT": of_transformers("vit", "ViTForImageClassification", "ViTConfig", VIT, reads="pixel_values"),
    "ViT (torchvision)": Model(
        "torchvision.models.vision_transformer",
        "VisionTransformer",
        TORCHVISION,
        reads="x",
        methods=("CP-LRP",),  # LXT has no patch for AttnLRP in PyTorch's own attention
    ),
}


class Scores(torch.nn.Module):
    """The logits [N, C] of the last token, or of the row."""

    def __init__(self, network: torch.nn.Module, reads: str) -> None:
        super().__init__()
        self.network, self.reads = network, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = self.network(**{self.reads: x})
        logits = getattr(answer, "logits", answer)
        return logits[:, -1] if logits.ndim == 3 else logits


def build(model: Model) -> Scores:
    """The network in float64 with the same weights each time, larger than a new network's: for a signal."""
    make = getattr(import_module(model.module), model.name)
    torch.manual_seed(0)  # torchvision draws biases
    if model.config is None:
        network = make(**model.options)
    else:
        network = make(getattr(import_module("transformers"), model.config)(**model.options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(network.named_parameters()):
            drawn = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                weight.copy_(1.5 / weight[0].numel() ** 0.5 * drawn)
            else:
                weight.add_(0.2 * drawn)
    return Scores(network, model.reads).double().eval()


def rows(model: Model) -> torch.Tensor:
    shape = (N, S, E) if model.reads == "inputs_embeds" else (N, 3, IMAGE, IMAGE)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


Layers = list[tuple[np.ndarray, np.ndarray]]  # values [N, …] of a layer, and its relevance [N, T, …]


def ours(model: Model, method: str, x: torch.Tensor) -> tuple[np.ndarray, Layers]:
    """Relevance [N, T, *shape of a row] by the compiled graph, and of every layer on the way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        names = {"input_names": ["x"], "output_names": ["y"], "verbose": False}
        batch = ({0: torch.export.Dim("n")},)
        torch.onnx.export(
            build(model).float(), (x.float(),), path, dynamo=True, dynamic_shapes=batch, **names
        )
        exported = onnx.load(path)
    compiled = compile_model(exported, METHODS[method](epsilon=0.0), targets=TARGETS, layers="all")
    answer = compiled.explain(x.float().numpy())
    combined = onnx.ModelProto()
    combined.CopyFrom(compiled.model)
    computed = {name for node in combined.graph.node for name in node.output}
    exposed = [layer for layer in compiled.manifest.layers if layer.tensor.name in computed]
    combined.graph.output.extend(onnx.ValueInfoProto(name=layer.tensor.name) for layer in exposed)
    values = Runner(combined)({"x": x.float().numpy()})
    layers = [(values[layer.tensor.name], answer[layer.attributions]) for layer in exposed]
    return answer["x_attributions"], layers


def theirs(model: Model, method: str, x: torch.Tensor) -> tuple[np.ndarray, Layers]:
    """The same by LXT, of every linear module: value times gradient in the patched network.

    The patches stay, in whole classes.
    """
    from lxt.efficient import monkey_patch

    module = import_module(model.module)
    monkey_patch(module, patch_map(module, method))
    network = build(model)
    if (model.name, method) == ("BertForSequenceClassification", "CP-LRP"):
        stop_at_queries_and_keys(network)
    x = x.clone().requires_grad_()
    met: list[torch.Tensor] = [x]
    for module_ in network.modules():
        if type(module_).__name__ in ("Linear", "Conv1D"):
            module_.register_forward_hook(lambda _module, _inputs, y: met.append(y))
    y = network(x)
    met = [value for value in met if value.requires_grad]
    each = [torch.autograd.grad(y[:, t].sum(), met, retain_graph=True, allow_unused=True) for t in TARGETS]
    relevance = [
        (value.detach().numpy(), torch.stack([value * g for g in gradients], dim=1).detach().numpy())
        for value, *gradients in zip(met, *each, strict=True)
        if all(g is not None for g in gradients)
    ]
    return relevance[0][1], relevance[1:]


def same_layers(got: Layers, want: Layers) -> tuple[float, str]:
    """The largest difference over a layer's largest relevance, and how many layers have a counterpart, which
    holds the same values.
    """
    largest, met = 0.0, 0
    for value, expected in want:
        near = 1e-4 * np.abs(value).max()
        same = [r for v, r in got if v.size == value.size and np.abs(v.ravel() - value.ravel()).max() < near]
        met += bool(same)
        differences = [
            np.abs(r.ravel() - expected.ravel()).max() / (np.abs(expected).max() or 1.0) for r in same
        ]
        largest = max(largest, min(differences, default=0.0))
    return float(largest), f"{met} of {len(want)} layers"


def patch_map(module: Any, method: str) -> dict[Any, Any]:
    """LXT's own for the network. It has none for transformers' ViT, and none of CP-LRP for BERT."""
    family = module.__name__.rpartition(".")[2].removeprefix("modeling_")
    if family == "vit":
        return vit_map(module, method)
    patches: Any = import_module(
        f"lxt.efficient.models.{'vit_torch' if 'torchvision' in module.__name__ else family}"
    )
    if method == "AttnLRP":
        return patches.attnLRP
    if family == "bert":
        patches.divide_gradient = lambda value, _: value  # no product of two that vary is left
    return patches.attnLRP if family == "bert" else patches.cp_LRP


def vit_map(module: Any, method: str) -> dict[Any, Any]:
    """LXT's patches for its other models, at transformers' own GELU, norms and attention."""
    from lxt.efficient import patches
    from transformers.activations import GELUActivation

    attention = {"AttnLRP": patches.patch_attention, "CP-LRP": patches.patch_cp_attention}[method]
    return {
        GELUActivation: partial(patches.patch_method, patches.non_linear_forward, keep_original=True),
        torch.nn.LayerNorm: partial(patches.patch_method, patches.layer_norm_forward),
        module: attention,
    }


def stop_at_queries_and_keys(network: torch.nn.Module) -> None:
    """As `patch_cp_attention` does in the other models."""
    from lxt.efficient.rules import stop_gradient

    for name, module in network.named_modules():
        if name.endswith(("self.query", "self.key")):
            module.register_forward_hook(lambda _module, _inputs, y: stop_gradient(y))


def difference(name: str, method: str) -> tuple[float, float, str]:
    """The largest over the largest relevance: of the input, and of any layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision()  # before transformers and LXT import it
        model = MODELS[name]
        x = rows(model)
        (got, layers), (want, expected) = ours(model, method, x), theirs(model, method, x)
        return float(np.abs(got - want).max() / np.abs(want).max()), *same_layers(layers, expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.peers.lrp.lxt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all by default")
    chosen = parser.parse_args().models or list(MODELS)
    if unknown := sorted(set(chosen) - set(MODELS)):
        parser.error(f"no model is called {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if find_spec("lxt") is None:
        parser.error("the package lxt is not installed: --help tells how to make its environment")
    pairs = [(name, method) for name in chosen for method in MODELS[name].methods]
    agree = True
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for (name, method), error in zip(pairs, pool.map(difference, *zip(*pairs, strict=True)), strict=True):
            print(f"{name:18} {method:8} {error[0]:.1e} {error[1]:.1e} {error[2]}", flush=True)
            agree &= error[0] <= AGREE and error[1] <= LAYERS_AGREE
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
