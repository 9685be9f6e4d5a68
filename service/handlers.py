"""Which entry answers a request: that of its name, or the explainer that its parameters choose."""

from service.api.v2_codec import Request
from service.errors import InvalidInputError, NotExplainableError
from service.repository.entry import Entry
from service.repository.registry import ModelRegistry


def entry_asked_for(registry: ModelRegistry, entry: Entry, asked: Request) -> Entry:
    """`entry`, which the request names, or another explanation of the same model.

    Raises:
        InvalidInputError: the entry only predicts, so that there is nothing to choose.
        UnknownResourceError: the model has no such explainer.
    """
    if entry.manifest is None:
        _check_predicts(entry, asked)
        return entry
    return entry if asked.explainer is None else registry.explainer(entry.name, None, asked.explainer)


def likely_explainer(registry: ModelRegistry, entry: Entry) -> Entry:
    """What explains `entry` unless a request says otherwise; itself where only a request can say."""
    try:
        return registry.explainer(entry.name)
    except NotExplainableError:
        return entry


def _check_predicts(entry: Entry, asked: Request) -> None:
    given = {"explainer": asked.explainer, "reference_set": asked.reference_set}
    for name, value in given.items():
        if value is not None:
            raise InvalidInputError(
                f"parameters.{name} is of explanations, but '{entry.name}' only predicts: ask its verb "
                f"explain, or '{entry.name}_explain'"
            )
