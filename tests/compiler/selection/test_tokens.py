"""Token ids are explained where they are looked up; the walk may end at any inner tensor."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import (
    AttnLrp,
    Compiled,
    DeepShap,
    Deployment,
    ExactShap,
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    SmoothGrad,
    compile_model,
)
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.methods.engine import Method
from tests.compiler.models import mlp, parsed, rows

VOCABULARY, L, E, CLASSES, N, K = 17, 5, 6, 3, 4, 7
RANDOM = np.random.default_rng(0)
REFERENCES = RANDOM.integers(0, VOCABULARY, (K, L))
IDS = RANDOM.integers(0, VOCABULARY, (N, L))
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
X = {"ids": IDS, "mask": MASK, "segments": SEGMENTS}
TABLE = rows(VOCABULARY, E, seed=1)
WEIGHTS = {
    "table": TABLE,
    "kinds": rows(2, E, seed=2),
    "places": rows(1, L, E, seed=3),
    "wq": rows(E, E, seed=4),
    "wk": rows(E, E, seed=5),
    "wv": rows(E, E, seed=6),
    "head": rows(E, CLASSES, seed=7),
    "low": np.float32(-1e4),
    "one": np.float32(1),
    "axes1": np.array([1]),
}
_BODY = """
    [kind] k = Gather (kinds, segments)
    a = Add (e, k)
    x = Add (a, places)
    q = MatMul (x, wq)
    kt = MatMul (x, wk)
    key = Transpose <perm = [0, 2, 1]> (kt)
    v = MatMul (x, wv)
    s = MatMul (q, key)
    m = Cast <to = 1> (mask)
    off = Sub (one, m)
    bias = Mul (off, low)
    wide = Unsqueeze (bias, axes1)
    masked = Add (s, wide)
    p = Softmax <axis = -1> (masked)
    o = MatMul (p, v)
    t = Tanh (o)
    z = ReduceMean <keepdims = 0> (t, axes1)
    y = MatMul (z, head)
"""
_EDGES = f"int64[N, {L}] mask, int64[N, {L}] segments) => (float[N, {CLASSES}] y)"


def encoder() -> onnx.ModelProto:
    """Ids, an attention mask and segments through one head of attention."""
    return parsed(f"g (int64[N, {L}] ids, {_EDGES} {{ [words] e = Gather (table, ids) {_BODY} }}", WEIGHTS)


def behind_embedding() -> onnx.ModelProto:
    """The same from the embedding on."""
    return parsed(f"g (float[N, {L}, {E}] e, {_EDGES} {{ {_BODY} }}", WEIGHTS)


def bag() -> onnx.ModelProto:
    """y [N, 2] of ids [N, 5] alone, the same table read twice."""
    text = """g (int64[N, 5] ids) => (float[N, 2] y) {
        e = Gather (table, ids)
        d = Gather (table, ids)
        p = Mul (e, d)
        s = ReduceSum <keepdims = 0> (p, axes1)
        t = Tanh (s)
        y = MatMul (t, w)
    }"""
    return parsed(text, {"table": TABLE / 3, "w": rows(E, 2, seed=8), "axes1": np.array([1])})


def complete(compiled: Compiled, x: object) -> dict[str, np.ndarray]:
    answer = compiled.explain(x)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.05
    assert np.abs(answer["completeness_gap"]).max() <= 1e-5 * difference
    return answer


def test_one_value_for_each_token() -> None:
    """As the model behind the embedding is explained, summed; what is not explained stays as in x."""
    compiled = compile_model(encoder(), DeepShap({"ids": REFERENCES}), targets="all")
    answer = complete(compiled, X)
    behind = compile_model(
        behind_embedding(), DeepShap({"e": TABLE[REFERENCES]}), targets="all", inputs=["e"]
    )
    want = behind.explain({"e": TABLE[IDS], "mask": MASK, "segments": SEGMENTS})
    assert answer["ids_attributions"].shape == (N, CLASSES, L)
    np.testing.assert_allclose(answer["ids_attributions"], want["e_attributions"].sum(-1), atol=1e-6)
    np.testing.assert_allclose(answer["base_value"], want["base_value"], atol=1e-6)
    assert "mask_attributions" not in answer
    assert "segments_attributions" not in answer


def test_the_base_value_is_the_models_at_the_reference_sequences() -> None:
    answer = compile_model(encoder(), DeepShap(REFERENCES), targets="all").explain(X)
    run = Runner(encoder())
    for i in range(N):
        other_inputs = {name: np.repeat(X[name][i : i + 1], K, axis=0) for name in ("mask", "segments")}
        at_references = run({"ids": REFERENCES, **other_inputs})["y"].mean(axis=0)
        np.testing.assert_allclose(answer["base_value"][i], at_references, atol=1e-6)


def test_the_ids_of_the_largest_table_are_the_default_and_it_is_said() -> None:
    compiled = compile_model(encoder(), DeepShap(REFERENCES))
    (explained,) = compiled.manifest.explained
    assert (explained.tensor.name, explained.tensor.datatype, explained.at) == ("ids", "INT64", ("e",))
    (warning,) = compiled.manifest.warnings
    assert re.search(r"^'ids' .*integers.*'e'.*: mask, segments \(--input", warning)


def test_truth_values_are_called_so() -> None:
    text = "g (bool[N, 3] x) => (float[N, 1] y) { f = Cast <to = 1> (x) y = MatMul (f, w) }"
    model = parsed(text, {"w": rows(3, 1, seed=1)})
    (warning,) = compile_model(model, DeepShap(np.eye(3) > 0)).manifest.warnings
    assert re.search(r"^'x' .*truth values.*'f'", warning)
    with pytest.raises(InvalidReferencesError, match=r"references of 'x' must be 0 or 1 \(False or True\)"):
        compile_model(model, ExactShap(np.full((1, 3), 0.5)))


def test_references_say_which_ids_are_explained() -> None:
    references = {"ids": REFERENCES, "segments": np.zeros((K, L), np.int64)}
    answer = complete(compile_model(encoder(), DeepShap(references)), X)
    assert answer["segments_attributions"].shape == answer["ids_attributions"].shape == (N, 1, L)
    same = answer["segments_attributions"][:, 0][SEGMENTS == 0]
    np.testing.assert_array_equal(same, 0)  # where x has the reference's segment


@pytest.mark.parametrize("inputs", [None, ["ids"]])
def test_a_mask_among_the_references_is_no_reference(inputs: list[str] | None) -> None:
    """Each row keeps its own; one set of tensors as a tokenizer gives them serves as references."""
    mask = np.repeat(MASK, 2, axis=0)[:K]
    compiled = compile_model(encoder(), DeepShap({"ids": REFERENCES, "mask": mask}), inputs=inputs)
    alone = compile_model(encoder(), DeepShap(REFERENCES))
    got, want = complete(compiled, X), alone.explain(X)
    assert compiled.manifest.digests == alone.manifest.digests
    assert "mask_attributions" not in got
    np.testing.assert_array_equal(got["ids_attributions"], want["ids_attributions"])
    if inputs is None:
        assert ": mask (--input" in compiled.manifest.warnings[0]


def test_a_mask_beside_two_tables() -> None:
    """As a tokenizer gives them: both tables are explained, and it is said once that the mask is not."""
    references = {"mask": MASK[:1].repeat(K, 0), "segments": np.zeros((K, L), np.int64), "ids": REFERENCES}
    compiled = compile_model(encoder(), DeepShap(references))
    complete(compiled, X)
    assert [e.tensor.name for e in compiled.manifest.explained] == ["ids", "segments"]
    assert [w.count(": mask (--input") for w in compiled.manifest.warnings] == [0, 1]


def test_a_batch_is_its_rows_one_by_one() -> None:
    compiled = compile_model(encoder(), DeepShap(REFERENCES))
    together = compiled.explain(X)["ids_attributions"]
    for i in range(N):
        alone = compiled.explain({name: a[i : i + 1] for name, a in X.items()})["ids_attributions"]
        np.testing.assert_allclose(alone[0], together[i], atol=1e-6)


@pytest.mark.parametrize("source", ["ids", "embedding", "ids by name"])
def test_an_inner_tensor(source: str) -> None:
    """References: its own rows, or those of the input that it is computed from."""
    references = {
        "ids": {"ids": REFERENCES},
        "embedding": TABLE[REFERENCES],
        "ids by name": {"e": TABLE[REFERENCES]},
    }[source]
    compiled = compile_model(encoder(), DeepShap(references), inputs=["e"])
    answer = complete(compiled, X)
    by_token = compile_model(encoder(), DeepShap(REFERENCES)).explain(X)
    assert answer["e_attributions"].shape == (N, 1, L, E)
    np.testing.assert_allclose(answer["e_attributions"].sum(-1), by_token["ids_attributions"], atol=1e-6)
    (explained,) = compiled.manifest.explained
    assert explained.tensor.shape == (L, E)
    assert explained.at is None
    assert [spec.name for spec in compiled.manifest.inputs] == ["ids", "mask", "segments"]


def test_references_as_an_embedding() -> None:
    """Such as zeros, which no token has."""
    answer = complete(compile_model(encoder(), DeepShap(np.zeros((1, L, E)))), X)
    behind = compile_model(behind_embedding(), DeepShap({"e": np.zeros((1, L, E))}), inputs=["e"])
    want = behind.explain({"e": TABLE[IDS], "mask": MASK, "segments": SEGMENTS})["e_attributions"]
    np.testing.assert_allclose(answer["ids_attributions"], want.sum(-1), atol=1e-6)


def test_rows_of_a_table_by_their_numbers() -> None:
    """`table[ids]`, as torch.export writes it."""
    indexed = "last = Constant <value_ints = [-1]> () w = Unsqueeze (ids, last) e = GatherND (table, w)"
    model = parsed(f"g (int64[N, {L}] ids, {_EDGES} {{ {indexed} {_BODY} }}", WEIGHTS)
    got, want = (compile_model(m, DeepShap({"ids": REFERENCES})).explain(X) for m in (model, encoder()))
    np.testing.assert_array_equal(got["ids_attributions"], want["ids_attributions"])


@pytest.mark.parametrize("batch", ["N", 1])
def test_a_table_of_whole_numbers(batch: str | int) -> None:
    """As dynamic quantisation leaves it."""
    steps = np.round(TABLE / 0.05).astype(np.int8)
    constants = {"steps": steps, "scale": np.float32(0.05), "zero": np.int8(0)}
    looked_up = "[words] codes = Gather (steps, ids) [floats] e = DequantizeLinear (codes, scale, zero)"
    text = f"g (int64[N, {L}] ids, {_EDGES} {{ {looked_up} {_BODY} }}".replace("[N,", f"[{batch},")
    model = parsed(text, {**WEIGHTS, **constants})
    plain = parsed(
        f"g (int64[N, {L}] ids, {_EDGES} {{ e = Gather (table, ids) {_BODY} }}",
        {**WEIGHTS, "table": np.float32(0.05) * steps},
    )
    got, want = (compile_model(m, DeepShap({"ids": REFERENCES})).explain(X) for m in (model, plain))
    np.testing.assert_allclose(got["ids_attributions"], want["ids_attributions"], atol=1e-6)


def test_a_table_that_is_read_twice() -> None:
    compiled = compile_model(bag(), DeepShap(REFERENCES), targets="all")
    answer = complete(compiled, IDS)
    assert compiled.manifest.explained[0].at in {("e",), ("e", "d")}
    run = Runner(bag())
    base = run({"ids": REFERENCES})["y"].mean(axis=0)
    np.testing.assert_allclose(answer["base_value"], np.tile(base, (N, 1)), atol=1e-6)


_SUMMED = "p = Mul (e, e) s = ReduceSum <keepdims = 0> (p, axis) t = Tanh (s) y = MatMul (t, w)"


def summed(looked_up: str, axis: int, **constants: np.ndarray) -> onnx.ModelProto:
    """y [N, 2] of ids [N, 5] that `looked_up` turns into rows e of a table, summed along an axis."""
    constants_of_model = {"table": TABLE / 3, "w": rows(E, 2, seed=8), "axis": np.array([axis]), **constants}
    return parsed(f"g (int64[N, 5] ids) => (float[N, 2] y) {{ {looked_up} {_SUMMED} }}", constants_of_model)


@pytest.mark.parametrize("added", ["Add (ids, first)", "Add (first, ids)"])
def test_a_table_of_several_fields(added: str) -> None:
    """As ids of the whole table are, to which the number of rows before each field has been added."""
    first = np.array([0, 4, 7, 11, 14])
    whole = summed("e = Gather (table, ids)", 1)
    fields = summed(f"[own] i = {added} e = Gather (table, i)", 1, first=first)
    got = complete(compile_model(fields, DeepShap(REFERENCES % 3), targets="all"), IDS % 3)
    want = complete(compile_model(whole, DeepShap(REFERENCES % 3 + first), targets="all"), IDS % 3 + first)
    np.testing.assert_allclose(got["ids_attributions"], want["ids_attributions"], atol=1e-6)


@pytest.mark.parametrize("turned", ["Transpose (ids)", "Transpose <perm = [1, 0]> (ids)"])
def test_ids_with_the_steps_on_axis_0(turned: str) -> None:
    """As XLNet and PyTorch's recurrent layers take them: explained as with the batch there."""
    steps_first, batch_first = f"i = {turned} e = Gather (table, i)", "e = Gather (table, ids)"
    got, want = (
        complete(compile_model(summed(text, axis), DeepShap(REFERENCES), targets="all"), IDS)
        for text, axis in ((steps_first, 0), (batch_first, 1))
    )
    np.testing.assert_allclose(got["ids_attributions"], want["ids_attributions"], atol=1e-6)


def test_what_else_follows_from_the_ids_stays() -> None:
    """A padding mask of the ids themselves is that of the row, not of the references."""
    text = f"""g (int64[N, {L}] ids) => (float[N, {E}] y) {{
        e = Gather (table, ids)
        padding = Equal (ids, zero)
        kept = Not (padding)
        f = Cast <to = 1> (kept)
        m = Unsqueeze (f, last)
        z = Mul (e, m)
        y = ReduceSum <keepdims = 0> (z, one)
    }}"""
    weights = {"table": TABLE, "zero": np.int64(0), "last": np.array([-1]), "one": np.array([1])}
    ids = np.array([[3, 0, 5, 0, 1], [2, 4, 6, 8, 0]])
    answer = complete(compile_model(parsed(text, weights), DeepShap(REFERENCES), targets="all"), ids)
    mask = (ids != 0).astype(np.float32)
    want = np.einsum("kle,nl->ne", TABLE[REFERENCES], mask) / K
    np.testing.assert_allclose(answer["base_value"], want, atol=1e-5)
    exact = (TABLE[ids] - TABLE[REFERENCES].mean(0)) * mask[:, :, None]
    np.testing.assert_allclose(answer["ids_attributions"], exact.transpose(0, 2, 1), atol=1e-5)


def test_columns_of_categories() -> None:
    """Each column has a table of its own; a numeric input beside them is explained as ever."""
    text = """g (int64[N, 3] codes, float[N, 2] x) => (float[N, 1] y) {
        c0, c1, c2 = Split <axis = 1> (codes, sizes)
        i2 = Cast <to = 6> (c2)
        e0 = Gather (t0, c0)
        e2 = Gather (t2, i2)
        f0 = Flatten (e0)
        f2 = Flatten (e2)
        n1 = Cast <to = 1> (c1)
        all = Concat <axis = 1> (f2, f0, n1, x)
        y = MatMul (all, w)
    }"""
    t0, t2, w = rows(4, 3, seed=1), rows(9, 2, seed=2), rows(8, 1, seed=3)
    model = parsed(text, {"t0": t0, "t2": t2, "w": w, "sizes": np.array([1, 1, 1])})
    codes, x = np.array([[3, 7, 8], [0, -2, 5]]), rows(2, 2, seed=4)
    r_codes, r_x = np.array([[1, 1, 0], [2, 5, 4], [0, 0, 3]]), rows(3, 2, seed=5)
    compiled = compile_model(model, DeepShap({"codes": r_codes, "x": r_x}))
    answer = complete(compiled, {"codes": codes, "x": x})

    def parts(c: np.ndarray) -> np.ndarray:
        return np.stack([t0[c[:, 0]] @ w[2:5, 0], c[:, 1] * w[5, 0], t2[c[:, 2]] @ w[:2, 0]], axis=1)

    want = parts(codes) - parts(r_codes).mean(0)
    np.testing.assert_allclose(answer["codes_attributions"][:, 0], want, atol=1e-5)
    np.testing.assert_allclose(answer["x_attributions"][:, 0], (x - r_x.mean(0)) * w[6:, 0], atol=1e-5)
    floats = compile_model(model, DeepShap(r_x)).explain({"codes": codes, "x": x})
    assert "codes_attributions" not in floats  # a float input alone is the default


def test_a_hidden_layer_as_input() -> None:
    """The half behind it, by references of the model's input."""
    whole, references, x = mlp((5, 7, 4, 3)), rows(6, 5, seed=1), rows(4, 5, seed=2)
    compiled = compile_model(whole, DeepShap(references), inputs=["h1"], output="z3", targets="all")
    answer = complete(compiled, x)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer}
    text = """g (float[N, 7] h1) => (float[N, 3] z3) {
        z2 = Gemm (h1, w2, b2)
        h2 = Relu (z2)
        z3 = Gemm (h2, w3, b3)
    }"""
    half = parsed(text, {n: weights[n] for n in ("w2", "b2", "w3", "b3")})
    hidden = [np.maximum(rows_ @ weights["w1"] + weights["b1"], 0) for rows_ in (references, x)]
    want = compile_model(half, DeepShap(hidden[0]), targets="all").explain(hidden[1])
    np.testing.assert_allclose(answer["h1_attributions"], want["h1_attributions"], atol=1e-5)
    assert compiled.manifest.explained[0].feature_names == tuple(f"h1[{i}]" for i in range(7))


def test_an_input_and_what_follows_from_it() -> None:
    """Each tensor at which the walk ends is a value of its own."""
    references = {"x": rows(6, 5, seed=1), "h1": np.abs(rows(6, 7, seed=2))}
    model = mlp((5, 7, 3), last="Tanh")
    with pytest.raises(InvalidReferencesError, match=r"given for \['x'\], but \['h1'\] are explained"):
        compile_model(model, DeepShap(references), inputs=["x", "h1"])  # nothing leads from x but through h1
    answer = complete(compile_model(model, DeepShap(references["h1"]), inputs=["h1"]), rows(4, 5, seed=3))
    assert "x_attributions" not in answer


METHODS: dict[str, Method] = {
    "integrated gradients": IntegratedGradients(REFERENCES, steps=64),
    "integrated gradients from zero": IntegratedGradients(0, steps=64),
    "expected gradients": ExpectedGradients(REFERENCES, samples=50),
    "gradient x input": Gradient(times_input=True),
    "smoothgrad": SmoothGrad(4, 0.1),
    "attnlrp": AttnLrp(),
    "standard errors": DeepShap(REFERENCES, standard_error=True),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_value_for_each_token(name: str) -> None:
    """As the model behind the embedding, summed."""
    method = METHODS[name]
    answer = compile_model(encoder(), method).explain(X)
    inner = compile_model(encoder(), method_at_embedding(method), inputs=["e"]).explain(X)
    assert answer["ids_attributions"].shape == (N, 1, L)
    scale = np.abs(inner["e_attributions"]).max()
    if not isinstance(method, SmoothGrad):  # its noise is drawn by the input's name
        np.testing.assert_allclose(
            answer["ids_attributions"], inner["e_attributions"].sum(-1), atol=1e-5 * scale
        )
    if "ids_standard_error" in answer:
        assert answer["ids_standard_error"].shape == (N, 1, L)


def method_at_embedding(method: Method) -> Method:
    """The same, with its reference sequences by the input's name."""
    if isinstance(getattr(method, "references", 0), np.ndarray):
        return replace(method, references={"ids": REFERENCES})  # type: ignore[type-var]
    return method


@pytest.mark.parametrize("one_shot", [False, True])
def test_a_written_entry(tmp_path: Path, one_shot: bool) -> None:
    """The command line: compile, check and explain; the warmup row has ids that the table holds."""
    path, repository = tmp_path / "m.onnx", tmp_path / "repository"
    onnx.save(encoder(), path)
    np.savez(tmp_path / "r.npz", ids=REFERENCES, mask=np.ones_like(REFERENCES))
    np.savez(tmp_path / "x.npz", **X)
    run = CliRunner()
    where = ["--repository", str(repository)]
    gate = ["--one-shot"] if one_shot else []
    command = ["compile", str(path), "--references", str(tmp_path / "r.npz"), "--name", "m", "--input", "ids"]
    result = run.invoke(app, [*command, *where, *gate])
    assert result.exit_code == 0, result.output
    assert re.search(r"'ids' .*integers.*'e'", result.output)
    entry = repository / ("m" if one_shot else "m_explain")
    warmup = np.frombuffer((entry / "warmup" / "input_0").read_bytes(), np.int64)
    np.testing.assert_array_equal(warmup, REFERENCES[0])
    assert run.invoke(app, ["check", "m", *where]).exit_code == 0
    saved = tmp_path / "a.npz"
    explained = run.invoke(
        app, ["explain", "m", "--input", str(tmp_path / "x.npz"), "--save", str(saved), *where]
    )
    assert explained.exit_code == 0, explained.output
    assert "ids[4]" in explained.output
    files = ["--input", str(tmp_path / "x.npz"), "--references", str(tmp_path / "r.npz")]
    refused = run.invoke(app, ["evaluate", "m", *files, *where])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "['ids']" in refused.stderr
    want = compile_model(encoder(), DeepShap(REFERENCES)).explain(X)["ids_attributions"]
    np.testing.assert_allclose(np.load(saved)["ids_attributions"], want, atol=1e-6)


def test_a_budget_that_walks_references_in_chunks() -> None:
    many = RANDOM.integers(0, VOCABULARY, (300, L))
    whole = compile_model(encoder(), DeepShap(many))
    small = compile_model(encoder(), DeepShap(many), deployment=Deployment(memory_budget=400_000))
    assert small.manifest.memory is not None
    assert small.manifest.memory.chunks > 1
    got, want = small.explain(X)["ids_attributions"], whole.explain(X)["ids_attributions"]
    np.testing.assert_allclose(got, want, atol=1e-6)


WRONG = {
    "an id outside of the table": (DeepShap(REFERENCES + VOCABULARY), None, "an id outside of its table"),
    "no whole number": (DeepShap(REFERENCES + 0.5), None, "must be whole numbers that int64 holds"),
    "another length": (DeepShap(REFERENCES[:, :3]), None, r"shape \[7, 3\]; the model needs \[K, 5\]"),
    "no rows": (DeepShap(REFERENCES[:0]), None, "at least one row"),
    "another input": (
        DeepShap({"mask": MASK}),
        ["ids"],
        r"\['mask'\].*\(\['ids'\]\)",
    ),
    "a mask of other rows": (
        DeepShap({"ids": REFERENCES, "mask": MASK}),
        None,
        r"same number of references \(ids: 7, mask: 4\)",
    ),
    "a mask of another length": (
        DeepShap({"ids": REFERENCES, "mask": np.ones((K, 3), int)}),
        None,
        r"'mask' have shape \[7, 3\]",
    ),
    "no such name": (DeepShap({"words": REFERENCES}), ["ids"], r"given for \['words'\]"),
    "two inputs, one array": (DeepShap(REFERENCES), ["ids", "segments"], "give a mapping from name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_references_that_do_not_fit(name: str) -> None:
    method, inputs, words = WRONG[name]
    with pytest.raises(InvalidReferencesError, match=words):
        compile_model(encoder(), method, inputs=inputs)


def test_names_of_nothing_that_can_be_explained() -> None:
    with pytest.raises(InvalidOptionError, match=r"\['nothing'\].*'ids'"):
        compile_model(encoder(), Gradient(), inputs=["nothing"])
    with pytest.raises(InvalidOptionError, match=r"'key_ids' .*floats"):
        compile_model(_with_integer_inside(), Gradient(), inputs=["key_ids"])
    with pytest.raises(InvalidOptionError, match=r"\['ids'\] .*floats.*table"):
        compile_model(_with_integer_inside(), Gradient(), inputs=["ids"])
    with pytest.raises(UnsupportedModelError, match=r"\['ids'\] .*--input"):
        compile_model(_with_integer_inside(), Gradient())


def _with_integer_inside() -> onnx.ModelProto:
    text = f"""g (int64[N, {L}] ids) => (float[N, {L}, {E}] y) {{
        key_ids = Mul (ids, ids)
        y = Gather (table, key_ids)
    }}"""
    return parsed(text, {"table": TABLE})


@pytest.mark.parametrize("inputs", [["ids"], ["e"]])
def test_evaluation_asks_for_float_inputs(tmp_path: Path, inputs: list[str]) -> None:
    """It replaces and perturbs features, which ids and inner tensors are not."""
    compile_model(encoder(), DeepShap({"ids": REFERENCES}), inputs=inputs).write(tmp_path, "m")
    np.savez(tmp_path / "x.npz", **X)
    result = CliRunner().invoke(
        app, ["evaluate", "m", "--input", str(tmp_path / "x.npz"), "--repository", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert "float inputs" in result.output
