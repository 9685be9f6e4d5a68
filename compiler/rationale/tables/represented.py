"""The data that a reference set represents: mean outputs over all its source rows, kept in its file."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from rationale.schema.manifest import Manifest

SHIFT = 0.01  # of a mean output, in standard deviations of the output, from which on it is told


class MeanOutput(BaseModel):
    """Of one output of a model, flattened: its mean over the rows, and the standard deviation over all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: tuple[float, ...]
    spread: tuple[float, ...]


class StandsFor(BaseModel):
    """The rows that a set was made of, as far as it says: how many, and what a model answers to them.

    Attributes:
        model: digest of the model whose mean outputs the weights keep; None if none was given.
        policy: the decision profile's policy by which the rows were drawn; None if there was none.
        threshold: the profile's threshold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    policy: str | None = None
    threshold: float | None = None
    model: str | None = None
    outputs: dict[str, MeanOutput] = {}

    def warnings(self, manifest: Manifest) -> tuple[str, ...]:
        """Return warnings for users of explanations that were compiled with the set."""
        return (*self._of_policy(manifest), *self._of_base(manifest))

    def _of_policy(self, manifest: Manifest) -> tuple[str, ...]:
        if self.policy is None or manifest.decision is None:
            return ()
        profile = manifest.decision.profile
        declared, drawn = ((profile.references.policy, profile.threshold), (self.policy, self.threshold))
        if drawn == declared:
            return ()
        return (
            f"the references were drawn as {drawn[0]} at the threshold {drawn[1]:g}, and the decision profile"
            f" says {declared[0]} at {declared[1]:g}: draw them again by this profile.",
        )

    def _of_base(self, manifest: Manifest) -> tuple[str, ...]:
        base = manifest.references.base_value if manifest.references else None
        output = self.outputs.get(manifest.explained_output)
        if manifest.decision is not None and manifest.decision.profile.space == "margin":
            output = None  # outputs are scores, and the base value is none
        if self.model is None:
            return (
                f"the references were computed from {self.rows} rows without a model, so the base value "
                "(their mean output) may be far from the mean output of the rows. Use `rationale "
                "references --model` to keep it.",
            )
        if self.model != manifest.digests.model:
            return (
                f"the weights of the references keep the mean output of another model over the {self.rows} "
                "rows that they represent: compute them again with `rationale references --model` and "
                "this one.",
            )
        if output is None or base is None or isinstance(manifest.targets, str):
            return ()
        elements = {t: b for t, b in zip(manifest.targets, base, strict=True) if isinstance(t, int)}
        if not elements:  # contrasts alone
            return ()
        return shift_warnings(
            manifest.explained_output, list(elements), list(elements.values()), output, self.rows
        )


def shift_warnings(
    name: str, elements: Sequence[int], base: Sequence[float], output: MeanOutput, rows: int
) -> tuple[str, ...]:
    """Warn of the element whose base value is farthest from its mean over all rows, if one is far."""
    mean, spread = (np.asarray(values)[list(elements)] for values in (output.mean, output.spread))
    off = (np.asarray(base) - mean) / np.where(spread > 0, spread, 1)
    worst = int(np.abs(off).argmax())
    if abs(off[worst]) <= SHIFT:
        return ()
    return (
        f"the base value shifts: the mean of {name!r}, element {elements[worst]}, is {base[worst]:.6g} "
        f"over the references and {mean[worst]:.6g} over the {rows} rows that they represent, "
        f"{abs(off[worst]):.2g} of its standard deviations away. Explanations start from the base value: "
        "ask for more rows.",
    )
