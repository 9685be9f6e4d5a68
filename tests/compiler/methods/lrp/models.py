"""Small float64 models for the tests of LRP: single linear maps in several spellings, and networks."""

import numpy as np
import onnx

from tests.compiler.models import parsed


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        for name, shape in shapes.items()
    }


def _positive(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2.0, size)


_BN = "BatchNormalization <epsilon = 0.1>"


def spellings() -> dict[str, tuple[onnx.ModelProto, tuple[int, ...]]]:
    """One linear layer each, with its row shape; what stands beside it is part of the layer."""
    statistics = {
        **_weights(11, s=(4,), t=(4,), m=(4,)),
        "v": _positive(12, 4),
        **{f"{k}6": v for k, v in _weights(13, s=(6,), t=(6,), m=(6,)).items()},
        "v6": _positive(14, 6),
    }
    image, row = (4, 5, 6), (4,)
    conv = {**_weights(1, k=(6, 4, 3, 3), kb=(6,)), **statistics}
    gemm = {**_weights(2, w=(4, 6), wt=(6, 4), b=(6,)), **statistics}
    stride = "Conv <pads = [1, 1, 1, 1], strides = [2, 2]>"
    texts = {
        "conv": (f"y = {stride} (x, k, kb)", image, conv),
        "conv without bias": ("y = Conv (x, k)", image, conv),
        "grouped conv": (
            "y = Conv <group = 2> (x, k, kb)",
            image,
            {**conv, **_weights(3, k=(6, 2, 3, 3))},
        ),
        "transposed conv": (
            "y = ConvTranspose <strides = [2, 1]> (x, k, kb)",
            image,
            {**conv, **_weights(4, k=(4, 6, 2, 3))},
        ),
        "conv, norm": (f"c = {stride} (x, k, kb) y = {_BN} (c, s6, t6, m6, v6)", image, conv),
        "transposed conv, norm": (
            f"c = ConvTranspose (x, k) y = {_BN} (c, s6, t6, m6, v6)",
            image,
            {**conv, **_weights(4, k=(4, 6, 2, 3))},
        ),
        "norm, conv": (f"n = {_BN} (x, s, t, m, v) y = {stride} (n, k, kb)", image, conv),
        "norm, conv, norm": (
            f"n = {_BN} (x, s, t, m, v) c = {stride} (n, k) y = {_BN} (c, s6, t6, m6, v6)",
            image,
            conv,
        ),
        "conv, scale, offset": (
            "c = Conv (x, k, kb) d = Mul (f, c) y = Sub (d, o)",
            image,
            {**conv, **_weights(5, f=(6, 1, 1), o=(6, 3, 4))},
        ),
        "gemm": ("y = Gemm (x, w, b)", row, gemm),
        "gemm, scaled": ("y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (x, wt, b)", row, gemm),
        "gemm, norm": (f"c = Gemm (x, w, b) y = {_BN} (c, s6, t6, m6, v6)", row, gemm),
        "norm, gemm": (f"n = {_BN} (x, s, t, m, v) y = Gemm <transB = 1> (n, wt, b)", row, gemm),
        "matmul": ("y = MatMul (x, w)", row, gemm),
        "matmul, add": ("c = MatMul (x, w) y = Add (b, c)", (3, 4), gemm),
        "matmul, div": ("c = MatMul (x, w) y = Div (c, f)", row, {**gemm, **_weights(6, f=(6,))}),
    }
    return {
        name: (_model(text, shape, "N, 6" if len(shape) == 1 else _free(shape), weights), shape)
        for name, (text, shape, weights) in texts.items()
    }


def averages() -> dict[str, tuple[onnx.ModelProto, tuple[int, ...]]]:
    """Sums with equal positive weights."""
    image = (3, 5, 6)
    texts = {
        "average pool": "y = AveragePool <kernel_shape = [2, 3], strides = [2, 1]> (x)",
        "padded average pool": "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)",
        "global average pool": "y = GlobalAveragePool (x)",
        "mean": "y = ReduceMean <keepdims = 0> (x, axes)",
    }
    axes = {"axes": np.asarray([1, 3])}
    return {
        name: (_model(t, image, "N, a, b" if name == "mean" else _free(image), axes), image)
        for name, t in texts.items()
    }


def _free(shape: tuple[int, ...]) -> str:
    return ", ".join(["N", *"abc"[: len(shape)]])


def _model(text: str, shape: tuple[int, ...], output: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    used = {name: array for name, array in weights.items() if _reads(text, name)}
    dims = ", ".join(map(str, shape))
    return parsed(f"g (double[N, {dims}] x) => (double[{output}] y) {{ {text} }}", used)


def _reads(text: str, name: str) -> bool:
    return name in text.replace("(", " ").replace(")", " ").replace(",", " ").split()


def network(name: str, biases: float = 0.0) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A network whose biases are drawn with the deviation `biases`, and its row shape.

    So wide that every neuron has contributions of both signs: rules that hand relevance back to one sign
    lose it where there is none.
    """
    text, shape, shapes = _NETWORKS[name]
    corner = {"lows": np.asarray([0, 0]), "highs": np.asarray([3, 4]), "axes": np.asarray([2, 3])}
    weights = _weights(21, **shapes)
    for key in weights:
        if key.startswith("b"):
            weights[key] = biases * weights[key]
        if key.startswith("v"):
            weights[key] = _positive(22, weights[key].size)
    return _model(text, shape, "N, 5", weights | corner), shape


_NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    "mlp": (
        """[layer1] c = Gemm <transB = 1> (x, w1, b1)  [bend1] d = Relu (c)
           [layer2] e = Gemm <transB = 1> (d, w2, b2)  [bend2] f = LeakyRelu <alpha = 0.25> (e)
           [layer3] g = Gemm <transB = 1> (f, w3, b3)  [bend3] h = Relu (g)
           [layer4] y = Gemm <transB = 1> (h, w4, b4)""",
        (7,),
        {"w1": (64, 7), "b1": (64,), "w2": (56, 64), "b2": (56,), "w3": (48, 56), "b3": (48,)}
        | {"w4": (5, 48), "b4": (5,)},
    ),
    "vgg": (
        """[c1] a = Conv <pads = [1, 1, 1, 1]> (x, k1, b1)  [r1] b = Relu (a)
           [c2] c = Conv <pads = [1, 1, 1, 1]> (b, k2, b2)  [r2] d = Relu (c)
           [p1] e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
           [c3] f = Conv (e, k3, b3)  [r3] g = Relu (f)
           [p2] h = AveragePool <kernel_shape = [2, 2]> (g)
           [flat] i = Flatten (h)  [l1] j = Gemm <transB = 1> (i, w1, b4)  [r4] k = Relu (j)
           [l2] y = Gemm <transB = 1> (k, w2, b5)""",
        (3, 8, 10),
        {"k1": (6, 3, 3, 3), "b1": (6,), "k2": (7, 6, 3, 3), "b2": (7,), "k3": (8, 7, 2, 2), "b3": (8,)}
        | {"w1": (40, 8 * 2 * 3), "b4": (40,), "w2": (5, 40), "b5": (5,)},
    ),
    "resnet": (
        f"""[c1] a = Conv <pads = [1, 1, 1, 1]> (x, k1)  [n1] b = {_BN} (a, s1, b1, b1, v1)  [r1] c = Relu (b)
           [c2] d = Conv <pads = [1, 1, 1, 1]> (c, k2)  [n2] e = {_BN} (d, s2, b2, b2, v2)  [r2] f = Relu (e)
           [c3] g = Conv <pads = [1, 1, 1, 1]> (f, k3)  [n3] h = {_BN} (g, s3, b3, b3, v3)
           [sum1] i = Add (c, h)  [r3] j = Relu (i)
           [c4] k = Conv <strides = [2, 2]> (j, k4, b4)  [short] l = Conv <strides = [2, 2]> (j, k5, b5)
           [cut] m = Slice (l, lows, highs, axes)
           [sum2] n = Add (k, m)  [r4] o = Relu (n)
           [p] q = GlobalAveragePool (o)  [flat] r = Flatten (q)  [l1] y = Gemm <transB = 1> (r, w1, b6)""",
        (3, 7, 9),
        {"k1": (24, 3, 3, 3), "k2": (20, 24, 3, 3), "k3": (24, 20, 3, 3)}
        | {"k4": (32, 24, 3, 3), "k5": (32, 24, 1, 1), "b4": (32,), "b5": (32,), "w1": (5, 32), "b6": (5,)}
        | {f"{n}{i}": (c,) for i, c in ((1, 24), (2, 20), (3, 24)) for n in "sbv"},
    ),
}
