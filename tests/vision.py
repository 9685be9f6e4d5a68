"""torchvision, imported so that it loads beside any build of torch."""

from collections.abc import Callable
from types import ModuleType
from unittest import mock

import torch  # noqa: F401  # the name that is patched below has to exist first


def import_torchvision() -> ModuleType:
    """Imports torchvision and returns it.

    torchvision's wheel from the package index is built for CUDA: its compiled operators do not load beside
    the CPU build of torch, and describing their shapes (`torch.library.register_fake`) then fails the
    import. The architectures need none of these operators, so the descriptions are skipped.
    """
    with mock.patch("torch.library.register_fake", _describe_nothing):
        import torchvision
    return torchvision


def _describe_nothing(*_args: object, **_kwargs: object) -> Callable[[object], object]:
    return lambda function: function
