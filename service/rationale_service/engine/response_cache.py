"""A cache of explanations.

An answer follows from its request alone, so equal requests have equal answers. Requests are equal if they
agree in the explanation (digests of model, references and options, among them targets), its entry and
version, the requested outputs, and name, datatype, shape and bytes of every input.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from cachetools import LRUCache

from rationale_service.observability.metrics import CacheMetrics
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Array, Tensors, bytes_of

_OVERHEAD = 512  # bytes per answer for key, dictionaries and array headers


class ResponseCache:
    """The most recently used answers, at most `limit` bytes. For one event loop."""

    def __init__(self, limit: int, counts: CacheMetrics) -> None:
        self._counts = counts
        self._answers: LRUCache[tuple[int, bytes], Tensors] = LRUCache(limit, getsizeof=_size)
        self._era = 0

    @property
    def size(self) -> int:
        """Bytes in the cache."""
        return int(self._answers.currsize)

    def key(self, entry: Entry, inputs: Tensors, outputs: Sequence[str]) -> tuple[int, bytes] | None:
        """Return the key of a request; None for an entry that does not explain, which is never cached."""
        if entry.manifest is None:
            return None
        return self._era, _digest(entry, inputs, outputs)

    def find(self, key: tuple[int, bytes]) -> Tensors | None:
        """Return the cached answer as read-only arrays, or None."""
        answer = self._answers.get(key)
        (self._counts.miss if answer is None else self._counts.hit)()
        return None if answer is None else dict(answer)

    def keep(self, key: tuple[int, bytes], tensors: Tensors) -> None:
        """Store a copy of an answer, unless `clear` came after its request."""
        if key[0] == self._era and _size(tensors) <= self._answers.maxsize:
            self._answers[key] = {name: _frozen(array) for name, array in tensors.items()}

    def clear(self) -> None:
        """Forget all answers and those in progress, after an explainer or a reference set was removed."""
        self._era += 1
        self._answers.clear()


def _digest(entry: Entry, inputs: Tensors, outputs: Sequence[str]) -> bytes:
    assert entry.manifest is not None  # noqa: S101 (for the type checker)
    digests = entry.manifest.digests
    digest = hashlib.blake2b(digest_size=32)
    _add(digest, (entry.name, entry.version, digests.model, digests.references or "", digests.explanation))
    _add(digest, outputs)
    for name, array in sorted(inputs.items()):
        _add(digest, (name, array.dtype.str, repr(array.shape)))
        if array.dtype.kind == "O":
            _add(digest, array.reshape(-1))
        else:
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()


def _add(digest: "hashlib.blake2b", parts: Iterable[str | bytes]) -> None:
    """Add each part after its length, so that different lists never look the same."""
    for text in parts:
        data = text.encode() if isinstance(text, str) else text
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    digest.update(b"\xff" * 8)


def _size(tensors: Tensors) -> int:
    return _OVERHEAD + sum(map(bytes_of, tensors.values()))


def _frozen(array: Array) -> Array:
    """Copy an array: a view would keep its whole batch in memory."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
