"""Forms of linear layers in PyTorch, timed where they run: the fastest is kept.

oneDNN's operators on weights laid out in advance are what torch.compile itself would call.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, nn

REPEATS = 5


@dataclass(frozen=True)
class Form:
    """`function(x, *constants, **options)`; `portable` ones are made of public operators alone."""

    function: Callable[..., Tensor]
    constants: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    portable: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, *self.constants, **self.options)


def fastest(
    forms: Sequence[Form], x: Tensor, *, portable: bool, known: dict[Hashable, int], key: Hashable
) -> Form:
    """The form of the least time on `x`, in turn; the first portable one where those are asked for.

    known: choices by `key`, which says all that the time depends on.
    """
    if portable:
        return next(form for form in forms if form.portable)
    if key not in known:
        times: dict[int, list[float]] = {i: [] for i in range(len(forms))}
        for _ in range(REPEATS):
            for i, form in enumerate(forms):
                started = time.perf_counter()
                form(x)
                times[i].append(time.perf_counter() - started)
        known[key] = min(times, key=lambda i: min(times[i][1:]))
    return forms[known[key]]


# -- what the forms call -------------------------------------------------------------------------------


def packed_convolution(
    x: Tensor, weight: Tensor, *bias: Tensor, padding: list[int], stride: list[int], groups: int
) -> Tensor:
    operator = torch.ops.mkldnn._convolution_pointwise
    given = bias[0] if bias else None
    y: Tensor = operator(x, weight, given, padding, stride, [1, 1], groups, "none", [], "")
    return y


def packed_transpose(
    m: Tensor, weight: Tensor, *, padding: list[int], extra: list[int], stride: list[int], groups: int
) -> Tensor:
    operator = torch.ops.mkldnn._convolution_transpose_pointwise
    y: Tensor = operator(m, weight, None, padding, extra, stride, [1, 1], groups, "none", [], "")
    return y


def packed_linear(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias[0] if bias else None, "none", [], "")
    return y


def convolution(x: Tensor, weight: Tensor, *bias: Tensor, **options: Any) -> Tensor:
    return F.conv2d(x, weight, bias[0] if bias else None, **options)


def transpose(m: Tensor, weight: Tensor, **options: Any) -> Tensor:
    return F.conv_transpose2d(m, weight, None, **options)


def per_pixel(m: Tensor, weight: Tensor) -> Tensor:
    """A 1×1 convolution as a product of matrices: channels come last in memory."""
    return F.linear(m.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)


def input_gradient(m: Tensor, weight: Tensor, like: Tensor, **options: Any) -> Tensor:
    """PyTorch's own backward operator, for the input alone."""
    mask = [True, False, False]
    y: Tensor = torch.ops.aten.convolution_backward(
        m, like.expand(len(m), *like.shape[1:]), weight, None, **options, output_mask=mask
    )[0]
    return y


# -- the forms of a layer ------------------------------------------------------------------------------


def last(tensor: Tensor) -> Tensor:
    """Channels last in memory, where there are any."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.contiguous()


def forward_forms(layer: nn.Conv2d | nn.Linear, x: Tensor) -> list[Form]:
    """Of the layer at inputs of the shape of x [N, …]."""
    bias = () if layer.bias is None else (layer.bias.detach(),)
    weight = layer.weight.detach()
    if isinstance(layer, nn.Linear):
        plain = Form(F.linear, (weight, *bias))
        return [plain, *_packed_linear(weight, bias, len(x))]
    options: dict[str, Any] = {
        "padding": list(layer.padding),
        "stride": list(layer.stride),
        "groups": layer.groups,
    }
    forms = [Form(convolution, (last(weight), *bias), options)]
    if _packs(weight):
        pack = torch.ops.mkldnn._reorder_convolution_weight
        packed = pack(weight, options["padding"], options["stride"], [1, 1], layer.groups, list(x.shape))
        forms.append(Form(packed_convolution, (packed, *bias), options, portable=False))
    return forms


def backward_forms(layer: nn.Conv2d | nn.Linear, scale: Tensor | None, x: Tensor, m: Tensor) -> list[Form]:
    """From the output's multiplier m to the input's, which is scaled by `scale` [C] where one is given.

    x: [1, …] an input of the layer; m: [N or N·K, …].
    """
    weight = layer.weight.detach()
    if isinstance(layer, nn.Linear):
        weight = weight if scale is None else weight * scale
        turned = weight.t().contiguous()
        plain = [Form(torch.mm, (weight,)), Form(F.linear, (turned,))]
        return [*plain, *_packed_linear(turned, (), len(m))]
    if scale is not None:
        assert layer.groups == 1
        weight = weight * scale[:, None, None]
    if layer.dilation != (1, 1) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError(f"the PyTorch baseline has no form for {layer}")
    return _convolution_backward(layer, weight, x, m)


def _convolution_backward(layer: nn.Conv2d, weight: Tensor, x: Tensor, m: Tensor) -> list[Form]:
    kernel, stride, padding = weight.shape[2:], list(layer.stride), [int(p) for p in layer.padding]
    extra = [
        x.shape[2 + i] - ((m.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i]) for i in range(2)
    ]
    options: dict[str, Any] = {"padding": padding, "stride": stride, "groups": layer.groups}
    packs = _packs(weight)
    forms = []
    if stride == [1, 1]:
        turned = _turned(weight, layer.groups)
        same = options | {"padding": [k - 1 - p for k, p in zip(kernel, padding, strict=True)]}
        if min(same["padding"]) >= 0:
            forms.append(Form(convolution, (last(turned),), same))
            if packs:
                pack = torch.ops.mkldnn._reorder_convolution_weight
                packed = pack(turned, same["padding"], stride, [1, 1], layer.groups, list(m.shape))
                forms.append(Form(packed_convolution, (packed,), same, portable=False))
        if list(kernel) == [1, 1] and padding == [0, 0] and layer.groups == 1:
            forms.append(Form(per_pixel, (weight.flatten(1).t().contiguous(),), portable=False))
    forms.append(Form(transpose, (last(weight),), options | {"output_padding": extra}))
    common = options | {"dilation": [1, 1], "transposed": False, "output_padding": [0, 0]}
    forms.append(Form(input_gradient, (last(weight), last(x[:1])), common))
    if packs:
        pack = torch.ops.mkldnn._reorder_convolution_transpose_weight
        packed = pack(weight, padding, extra, stride, [1, 1], layer.groups, list(m.shape))
        also = options | {"extra": extra}
        forms.append(Form(packed_transpose, (packed,), also, portable=False))
    return forms


def _turned(weight: Tensor, groups: int) -> Tensor:
    """[out, in/groups, h, w] to [in, out/groups, h, w], each kernel turned by 180°."""
    parts = weight.flip(2, 3).reshape(groups, -1, *weight.shape[1:])
    return parts.transpose(1, 2).flatten(0, 1).contiguous()


def _packs(weight: Tensor) -> bool:
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    return has_onednn and weight.dtype == torch.float32


def _packed_linear(weight: Tensor, bias: tuple[Tensor, ...], rows: int) -> list[Form]:
    if not _packs(weight):
        return []
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return [Form(packed_linear, (packed, *bias), portable=False)]
