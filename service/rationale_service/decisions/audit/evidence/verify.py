"""Verification of every row against its digest and its predecessor, and of chains against signed heads.

Missing data needs evidence: pruned rows a checkpoint that shows their age, missing keys of inputs a signed
record of their erasure.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rationale_service.decisions.audit.evidence.heads import SignedHead
from rationale_service.decisions.audit.evidence.retention import erasure_of
from rationale_service.decisions.audit.evidence.signatures import PublicKey, signed_by_one
from rationale_service.decisions.audit.rows import (
    GENESIS,
    ChainHead,
    Row,
    digest,
    placed_digest,
    text_digest,
    unreadable,
)
from rationale_service.decisions.audit.stores.store import AuditStore, Chain

_AT_ONCE = 500


@dataclass(frozen=True)
class ChainFault:
    """A place at which a chain differs from its original rows."""

    chain: str
    sequence: int
    text: str

    def __str__(self) -> str:
        return f"chain {self.chain}, row {self.sequence}: {self.text}"


def verify(
    store: AuditStore,
    signed: Sequence[SignedHead] = (),
    kept_since: str | None = None,
    keys: Sequence[PublicKey] = (),
) -> Iterator[ChainFault | int]:
    """Verify all chains in one snapshot.

    Args:
        signed: heads that chains must still hold.
        kept_since: time before which rows may be pruned; None if no row may be.
        keys: public keys, one of which must have signed each erasure; empty to skip signatures.

    Yields:
        Faults, and at times the number of rows read so far.

    Raises:
        StateUnavailableError: if the trail cannot be read.
    """
    heads: dict[str, list[SignedHead]] = {}
    for head in signed:
        heads.setdefault(head.chain, []).append(head)
    read = 0
    gone = (Chain(name, None, iter(())) for name in sorted(heads))
    for chain in itertools.chain(store.chains(), gone):
        for fault_or_none in _walk(chain, heads.pop(chain.name, []), kept_since, keys):
            if fault_or_none is None:
                read += 1
                if read % _AT_ONCE == 0:
                    yield read
            else:
                yield fault_or_none
    yield read


def _walk(
    chain: Chain, signed: Sequence[SignedHead], kept_since: str | None, keys: Sequence[PublicKey]
) -> Iterator[ChainFault | None]:
    """Verify a chain; yield its faults, and None for each row."""
    beginning, of_checkpoint = _beginning(chain, kept_since)
    yield from of_checkpoint
    last, hashes, erased = beginning, {head.sequence: "" for head in signed}, set[int]()
    if beginning.sequence in hashes:
        hashes[beginning.sequence] = beginning.hash
    for row in chain.rows:
        yield None
        if columns := unreadable(row):
            place = row["sequence"] if isinstance(row["sequence"], int) else last.sequence + 1
            yield ChainFault(chain.name, place, f"cannot be read: {columns} cannot have been written so")
        else:
            yield from _faults(row, last)
            yield from _key_faults(row, keys)
        if not isinstance(row["sequence"], int):
            continue
        last = ChainHead(chain.name, row["sequence"], row["hash"])
        if last.sequence in hashes:
            hashes[last.sequence] = last.hash
        if row["signature"] is not None:
            erased.add(last.sequence)
    of_heads = [
        fault
        for head in signed
        for fault in (
            *_beginning_faults(head, beginning, kept_since),
            *_end_faults(head, last, hashes[head.sequence]),
            *_erasure_faults(head, beginning, erased),
        )
    ]
    yield from (fault for fault in dict.fromkeys(of_heads) if fault not in of_checkpoint)


def _beginning(chain: Chain, kept_since: str | None) -> tuple[ChainHead, list[ChainFault]]:
    """Return the row after which a chain begins, and the faults of its checkpoint."""
    checkpoint = chain.checkpoint
    if checkpoint is None:
        return ChainHead(chain.name, 0, GENESIS), []
    sequence, faults = (
        checkpoint["sequence"] if isinstance(checkpoint["sequence"], int) else 0,
        list[ChainFault](),
    )
    if columns := unreadable(checkpoint):
        faults.append(ChainFault(chain.name, sequence, f"has a checkpoint that cannot be read: {columns}"))
        return ChainHead(chain.name, sequence, checkpoint["hash"]), faults
    if placed_digest(checkpoint) != checkpoint["hash"]:
        text = "has a checkpoint that was altered: it does not have its digest"
        faults.append(ChainFault(chain.name, sequence, text))
    if kept_since is None or checkpoint["time"] >= kept_since:
        faults.append(_too_early(chain.name, sequence, checkpoint["time"]))
    return ChainHead(chain.name, sequence, checkpoint["hash"]), faults


def _too_early(chain: str, sequence: int, time: str) -> ChainFault:
    return ChainFault(chain, sequence, f"is of {time}, and was pruned before its time")


def _beginning_faults(head: SignedHead, beginning: ChainHead, kept_since: str | None) -> Iterator[ChainFault]:
    chain, begins = head.chain, beginning.sequence + 1
    if begins < head.first:
        yield ChainFault(chain, begins, f"was pruned, up to row {head.first - 1}, when the head was signed")
    elif begins == head.first and beginning.hash != head.before:
        yield ChainFault(chain, begins - 1, "has another checkpoint than when the head was signed")
    if head.sequence < begins and (kept_since is None or head.time >= kept_since):
        yield _too_early(chain, head.sequence, head.time)


def _end_faults(head: SignedHead, last: ChainHead, hash_now: str) -> Iterator[ChainFault]:
    """Yield the faults of a chain's end.

    Args:
        hash_now: present hash of the head's row; "" if the row is missing.
    """
    if head.sequence > last.sequence:
        text = f"is gone, and all up to row {head.sequence}, of which there is a signed head"
        yield ChainFault(head.chain, last.sequence + 1, text)
    elif hash_now not in ("", head.hash):
        text = "is not the row of the signed head: the chain was rewritten"
        yield ChainFault(head.chain, head.sequence, text)


def _erasure_faults(head: SignedHead, beginning: ChainHead, erased: set[int]) -> Iterator[ChainFault]:
    for sequence in head.erased:
        if sequence > beginning.sequence and sequence not in erased:
            text = "was erased when the head was signed, and no record says so now"
            yield ChainFault(head.chain, sequence, text)


def _faults(row: Row, last: ChainHead) -> Iterator[ChainFault]:
    chain, sequence, expected = row["chain"], row["sequence"], last.sequence + 1
    if sequence > expected:
        gone = f"rows {expected} to {sequence - 1} are" if sequence > expected + 1 else f"row {expected} is"
        yield ChainFault(chain, expected, f"{gone} removed")
    elif sequence < expected:
        yield ChainFault(chain, sequence, "stands before what was pruned: it was inserted")
    elif row["previous"] != last.hash:
        yield ChainFault(chain, sequence, "does not follow the row before it: one of them was replaced")
    if digest(row) != row["hash"]:
        yield ChainFault(chain, sequence, "was altered: it does not have its digest")


def _key_faults(row: Row, keys: Sequence[PublicKey]) -> Iterator[ChainFault]:
    """Yield faults of the key of a row's inputs, or of the record of its erasure."""
    chain, sequence, wrapped, is_erased = row["chain"], row["sequence"], row["wrapped"], row["erased"]
    if wrapped is None and row["key_digest"] is not None and is_erased is None:
        yield ChainFault(
            chain, sequence, "has lost the key of its inputs, and no record says that it was erased"
        )
    if wrapped is not None and is_erased is not None:
        yield ChainFault(chain, sequence, "was erased, and the key of its inputs is there again")
    elif wrapped is not None and text_digest(wrapped) != row["key_digest"]:
        yield ChainFault(chain, sequence, "has another key of its inputs than it was written with")
    if is_erased is None or not keys:
        return
    if not signed_by_one(keys, erasure_of(row, is_erased), row["signature"]):
        yield ChainFault(chain, sequence, "was erased by a record that the public key did not sign")
