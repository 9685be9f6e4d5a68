"""The description of a form: each feature with its title, unit, range, words and rule."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from rationale.schema.manifest import FLOATS, Category, Manifest, Spread, TensorSpec, names_of
from rationale.schema.profile import DecisionProfile, FeatureRule

Kind = Literal["number", "text", "flag"]
_NO_RULE = FeatureRule()
_KINDS: dict[str, Kind] = {"BYTES": "text", "BOOL": "flag"}


@dataclass(frozen=True)
class Field:
    """One feature: what the model takes, what the profile says of it, how the references are spread.

    The API's answer, the console, exported pages and the checks of rows read this description alone.

    Attributes:
        spec: the model's input that holds it; None where only a knock-out looks at it.
        missing: whether null may be sent.
        splits: the numbers from which on trees may answer otherwise.
        texts: those that the fitted model knows; none if it knows no list of them.
    """

    name: str
    spec: TensorSpec | None
    kind: Kind
    missing: bool
    rule: FeatureRule = _NO_RULE
    spread: Spread | None = None
    texts: tuple[str, ...] = ()
    splits: tuple[float, ...] = ()

    @property
    def input(self) -> str | None:
        """The model's input that holds it."""
        return None if self.spec is None else self.spec.name

    @property
    def title(self) -> str | None:
        """The profile's."""
        return self.rule.title

    @property
    def unit(self) -> str | None:
        """The profile's."""
        return self.rule.unit

    @property
    def value_labels(self) -> dict[str, str]:
        """Words of the profile for its values."""
        return dict(self.rule.categories)

    @property
    def categories(self) -> tuple[Category, ...]:
        """Values of a text, and the share of the references that has each."""
        return self.spread.categories if self.spread else ()

    @property
    def missing_share(self) -> float | None:
        """The share of the references without a value."""
        return self.spread.missing if self.spread else None

    @property
    def integer(self) -> bool:
        """Whether the model takes whole numbers alone."""
        return self.kind == "number" and self.spec is not None and self.spec.datatype not in FLOATS

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Of the references that have a number, at 0, 5 … 100%."""
        return self.spread.quantiles if self.spread else ()

    @property
    def whole(self) -> bool | None:
        """Whether its numbers are whole, where that is known."""
        if self.integer:
            return True
        return self.spread.whole if self.spread and self.quantiles else None

    @property
    def least(self) -> float | None:
        """The profile's, else the references' least."""
        return self.rule.least if self.rule.least is not None else next(iter(self.quantiles), None)

    @property
    def most(self) -> float | None:
        """The profile's, else the references' largest."""
        return self.rule.most if self.rule.most is not None else next(reversed(self.quantiles), None)


def feature_names(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Return the names of the features of every input, as explanations and decisions have them."""
    given = {item.tensor.name: item.feature_names for item in manifest.explained}
    return {
        spec.name: names_of(spec.name, given.get(spec.name), math.prod(spec.shape))
        for spec in manifest.inputs
    }


def model_fields(
    manifest: Manifest,
    features: Iterable[tuple[str, str]],
    profile: DecisionProfile | None,
    spreads: Iterable[Spread],
) -> list[Field]:
    """Return the fields of features that the model takes.

    Args:
        features: each with its input's name, in their order.
    """
    specs, spread = {spec.name: spec for spec in manifest.inputs}, {one.feature: one for one in spreads}
    rules = profile.features if profile else {}
    texts = manifest.texts_by_feature
    return [
        Field(
            name,
            specs[tensor],
            _KINDS.get(specs[tensor].datatype, "number"),
            tensor in manifest.takes_missing,
            rules.get(name, _NO_RULE),
            spread.get(name),
            texts[name].known if name in texts else (),
            manifest.splits.get(name, ()),
        )
        for name, tensor in features
    ]


def knock_out_fields(profile: DecisionProfile, known: Collection[str]) -> list[Field]:
    """Return the fields of what knock-outs look at and the model does not take.

    Args:
        known: names of the model's features and inputs.
    """
    compared: dict[str, set[type]] = {}
    for rule in profile.knock_outs:
        if rule.feature not in known:
            compared.setdefault(rule.feature, set()).add(type(rule.equals))
    return [
        Field(
            name,
            None,
            "flag" if bool in types else "text" if str in types else "number",
            missing=True,
            rule=profile.features.get(name, _NO_RULE),
        )
        for name, types in compared.items()
    ]
