"""The language of an answered decision's texts; the trail keeps the profile's first."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rationale.decisions.decide import reason_in_language
from rationale.decisions.rows import profile_of
from rationale.errors import InvalidOptionError
from rationale.schema.manifest import Manifest
from rationale_service.errors import ConflictError, InvalidInputError


def demand(manifest: Manifest, _: object, language: str) -> None:
    """Raise InvalidInputError if the decision profile does not have the language."""
    try:
        profile_of(manifest).profile.in_language(language)
    except InvalidOptionError as error:
        raise InvalidInputError(str(error)) from error


def answered(
    manifest: Manifest, decisions: Sequence[Mapping[str, Any]], language: str
) -> Iterator[dict[str, Any]]:
    """Return decisions with the texts of their reasons in the language.

    Raises:
        ConflictError: if another decision profile decided.
    """
    embedded = profile_of(manifest)
    if any(decision["digests"]["profile"] != embedded.digest for decision in decisions):
        raise ConflictError(
            f"language: the decision profile of '{manifest.model}' has changed since this decision: repeat "
            "the request without language, or use the decision's notice"
        )
    in_it = partial(reason_in_language, embedded.profile, language)
    return ({**each, "reasons": [*map(in_it, each["reasons"])]} for each in decisions)
