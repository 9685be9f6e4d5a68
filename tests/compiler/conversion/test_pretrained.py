"""Folders of Hugging Face: classifiers of texts and images as `save_pretrained` wrote them."""

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.networks import import_torchvision
from rationale import AttnLrp, Lrp, compile_model, load
from rationale.cli.compile import app
from rationale.conversion.files import is_fitted_file, read_fitted
from rationale.errors import InvalidModelError, InvalidOptionError, UnsupportedModelError
from tests.models.transformers_models import _redraw

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paid", "missed", "cured", "##ly", "late"]
LABELS = {0: "good", 1: "bad", 2: "unsure"}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
IMAGE = {
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": DEVIATION,
    "size": {"height": 16, "width": 16},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tiny models with random weights: bert, distilbert, vit and resnet."""
    import_torchvision()
    import transformers

    folder = tmp_path_factory.mktemp("pretrained")
    common = {"id2label": LABELS, "label2id": {name: i for i, name in LABELS.items()}}
    of_text = {**common, "vocab_size": len(WORDS), "max_position_embeddings": 8}
    configs: dict[str, Any] = {
        "bert": transformers.BertConfig(**of_text, **LAYERS),
        "distilbert": transformers.DistilBertConfig(**of_text, dim=16, n_layers=1, n_heads=2, hidden_dim=24),
        "vit": transformers.ViTConfig(**common, **LAYERS, image_size=16, patch_size=8),
        "resnet": transformers.ResNetConfig(
            **common, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
        ),
    }
    for name, config in configs.items():
        torch.manual_seed(0)
        is_text = name.endswith("bert")
        kind: Any = getattr(transformers, f"AutoModelFor{'Sequence' if is_text else 'Image'}Classification")
        network = kind.from_config(config)
        _redraw(network)
        network.save_pretrained(folder / name)
        if is_text:
            (folder / "vocab.txt").write_text("\n".join(WORDS))
            tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=8)
            tokenizer.save_pretrained(folder / name)
        else:
            (folder / name / "preprocessor_config.json").write_text(json.dumps(IMAGE))
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_text_has_its_tokens_and_classes_named(folders: Path, tmp_path: Path, name: str) -> None:
    import transformers

    compiled = compile_model(folders / name, AttnLrp())
    manifest = compiled.manifest
    assert manifest.class_names == (*LABELS.values(),)
    assert [spec.name for spec in manifest.inputs] == ["input_ids", "attention_mask"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders / name)
    texts = ["missed late", "paid cured late paid"]
    encoded = tokenizer(texts, padding="max_length", truncation=True, return_tensors="np")
    x = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    answer = compiled.explain(x)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folders / name).eval()
    with torch.no_grad():
        logits = network(**{key: torch.from_numpy(array) for key, array in x.items()}).logits.numpy()
    np.testing.assert_allclose(answer["output"], logits, atol=1e-5)
    assert answer["label"].tolist() == [LABELS[i] for i in logits.argmax(axis=1)]
    relevance = answer[manifest.explained[0].attributions][:, 0]
    assert relevance.shape == (2, 8)
    assert (relevance[0, :4] != 0).all()
    assert (relevance[0, 4:] == 0).all()  # what fills up is masked
    answer.plot(tokens=folders / name / "tokenizer.json").save(tmp_path / "words.svg")
    picture = (tmp_path / "words.svg").read_text()
    assert all(word in picture for word in ("missed", "late", "unsure"))


@pytest.mark.full
@pytest.mark.parametrize(("name", "method"), [("vit", AttnLrp()), ("resnet", Lrp())])
def test_an_image_takes_pixels_from_0_to_1(folders: Path, name: str, method: Any) -> None:
    import transformers

    compiled = compile_model(folders / name, method)
    assert compiled.manifest.class_names == (*LABELS.values(),)
    assert [(spec.name, spec.shape) for spec in compiled.manifest.inputs] == [("pixels", (3, 16, 16))]
    pixels = np.random.default_rng(1).random((2, 3, 16, 16), np.float32)
    scaled = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(DEVIATION, (3, 1, 1))
    network = transformers.AutoModelForImageClassification.from_pretrained(folders / name).eval()
    with torch.no_grad():
        logits = network(torch.from_numpy(scaled.astype(np.float32))).logits.numpy()
    answer = compiled.explain(pixels)
    np.testing.assert_allclose(answer["output"], logits, atol=1e-4)
    relevance = answer[compiled.manifest.explained[0].attributions]
    assert relevance.shape == (2, 1, 3, 16, 16)
    assert np.isfinite(relevance).all()
    assert relevance.any()


@pytest.mark.full
@pytest.mark.parametrize(("name", "method"), [("bert", "attnlrp"), ("vit", "attnlrp"), ("resnet", "lrp")])
def test_the_command_takes_the_folder(folders: Path, tmp_path: Path, name: str, method: str) -> None:
    words = ["compile", str(folders / name), "--name", name, "--repository", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "parity" in result.output
    assert load(tmp_path, name).manifest.method.name == method


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "gone", "config", "error", "told"),
    [
        ("bert", "model.safetensors", {}, InvalidModelError, "has no weights"),
        ("bert", "tokenizer*", {}, InvalidModelError, "save the model's tokenizer there too"),
        ("vit", "preprocessor_config.json", {}, InvalidModelError, "save the model's image processor"),
        (
            "bert",
            "",
            {"architectures": ["BertForMaskedLM"]},
            UnsupportedModelError,
            "BertForMaskedLM is neither",
        ),
        ("bert", "", {"architectures": None}, UnsupportedModelError, "none is neither"),
        ("bert", "", {"model_type": "unheard-of"}, InvalidModelError, "transformers cannot read it"),
    ],
)
def test_what_is_missing_is_named(
    folders: Path, tmp_path: Path, name: str, gone: str, config: Any, error: type, told: str
) -> None:
    own = shutil.copytree(folders / name, tmp_path / "own")
    for path in own.glob(gone) if gone else ():
        path.unlink()
    file = own / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    with pytest.raises(error, match=told):
        compile_model(own, AttnLrp())


@pytest.mark.full
def test_code_in_the_folder_does_not_run(folders: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folders / "bert", tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    code = {"AutoConfig": "mine.Config", "AutoModelForSequenceClassification": "mine.Model"}
    (own / "config.json").write_text(json.dumps({**config, "model_type": "mine", "auto_map": code}))
    (own / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InvalidModelError, match="contains custom code"):
        compile_model(own, AttnLrp())
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_a_size_that_leaves_a_side_open_is_refused(folders: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folders / "vit", tmp_path / "own")
    (own / "preprocessor_config.json").write_text(json.dumps({**IMAGE, "size": {"longest_edge": 16}}))
    with pytest.raises(UnsupportedModelError, match="write height and width"):
        compile_model(own, AttnLrp())


@pytest.mark.parametrize("name", ["bert-base-uncased", "owner/bert-1.5"])
def test_nothing_is_downloaded(name: str) -> None:
    assert is_fitted_file(Path(name))
    with pytest.raises(InvalidModelError, match="nothing is downloaded"):
        compile_model(name, AttnLrp())


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"a folder without config\.json"):
        compile_model(tmp_path, AttnLrp())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("no", name="transformers"), "needs transformers, which is not installed: pip"),
        (ModuleNotFoundError("operator does not exist"), "failed: operator does not exist: pip"),
    ],
    ids=["missing", "broken"],
)
def test_a_folder_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    imported = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("rationale.conversion.pretrained"):
            raise error
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidOptionError, match=text):
        read_fitted(tmp_path)
