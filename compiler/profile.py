"""`decision.yaml`: by what rules a model's output becomes a decision, and an explanation its reasons.

A lender writes it, `rationale compile --decision` holds it against the model and embeds it in the manifest,
and the service decides by it. docs/decisions/0038-decisions.md says why it stands in the compiled entry.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from compiler.errors import InvalidProfileError

_OUTPUT = re.compile(r"(?P<tensor>.+?)(\[(?P<index>\d+)\])?")
POLICIES = ("near_threshold", "all_applicants", "approved", "custom")
# The comment 9(b)(2)-5 on Regulation B, 12 CFR 1002.9, names these two.
NAMED_BY_REGULATION_B = ("near_threshold", "all_applicants")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FeatureRule(_Strict):
    """What is said of a feature, or of a group, and by which reason."""

    title: str | None = Field(None, description="for people; by default the feature's name")
    unit: str | None = None
    type: Literal["number", "category", "flag"] | None = None
    categories: dict[str, str] = Field({}, description="what values of a category are called")
    reason: str | None = Field(None, description="code of its reason")


class GroupRule(FeatureRule):
    """Features that are explained as one: a category's one-hot columns, or what tells the same."""

    members: tuple[str, ...] = Field(min_length=1)


class Wording(_Strict):
    """A text that is used only for some values of the feature."""

    text: str
    above: float | None = None
    below: float | None = None
    equals: float | str | None = None


class ReasonText(_Strict):
    """A reason as an applicant reads it."""

    text: str
    missing: str | None = Field(None, description="instead, where the value is missing")
    when: tuple[Wording, ...] = Field((), description="instead, where the first of these fits")
    inquiry: bool = Field(
        False, description="on inquiries: it may stand as one more than the greatest number, FCRA 609(f)(9)"
    )


class KnockOut(_Strict):
    """A factor that declines by itself, one of the model's features or not; its reason is the only one."""

    feature: str
    above: float | None = None
    below: float | None = None
    equals: float | str | None = None
    reason: str


class ReferencePolicy(_Strict):
    """With whom an applicant is compared."""

    policy: Literal["near_threshold", "all_applicants", "approved", "custom"] = "custom"


def _as_reason(given: Any) -> Any:
    return {"text": given} if isinstance(given, str) else given


class DecisionProfile(_Strict):
    """The rules of one decision. Features and groups are named by the model's own names.

    Attributes:
        output: the score, a tensor or an element of its flattened row, TENSOR[index].
        adverse: on which side of the threshold a score is adverse; at the threshold it passes.
        refer: scores from low to high, both included, that a person decides.
        space: what attributions add up to: the score, or the margin of which the score is the Sigmoid.
        never_disclose: features and groups that no notice may name. It is an error if one is a principal
            reason: to leave it out would be to give other reasons than the true ones.
        protected: attributes that the model must not have as inputs, but for those in `allow_protected`.
        tolerance: completeness gap above which there are no reasons, in units of what is explained; by
            default 1e-4 of the output's range.
    """

    output: str
    threshold: float
    refer: tuple[float, float] | None = None
    adverse: Literal["above", "below"]
    space: Literal["output", "margin"] = "output"
    references: ReferencePolicy = ReferencePolicy()
    max_reasons: int = Field(4, ge=1)
    features: dict[str, FeatureRule] = {}
    groups: dict[str, GroupRule] = {}
    reasons: dict[str, Annotated[ReasonText, BeforeValidator(_as_reason)]] = {}
    knock_outs: tuple[KnockOut, ...] = ()
    never_disclose: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    allow_protected: tuple[str, ...] = ()
    tolerance: float | None = Field(None, gt=0)

    @property
    def tensor(self) -> str:
        """The output without an index."""
        return self._output()[0]

    @property
    def index(self) -> int | None:
        """Of the flattened row, where one is given."""
        return self._output()[1]

    def _output(self) -> tuple[str, int | None]:
        found = _OUTPUT.fullmatch(self.output)
        if found is None:
            return self.output, None
        return found["tensor"], None if found["index"] is None else int(found["index"])

    def rule(self, key: str) -> FeatureRule:
        """What is said of a feature or group; of one that is not in the profile, nothing."""
        return self.groups.get(key) or self.features.get(key) or FeatureRule()

    def title(self, key: str) -> str:
        """Of a feature or group, for people."""
        return self.rule(key).title or key

    @property
    def digest(self) -> str:
        """SHA-256 of its JSON."""
        return sha256(self.model_dump_json().encode()).hexdigest()


def as_profile(given: DecisionProfile | Mapping[str, Any] | str | Path) -> DecisionProfile:
    """A profile, its members, or its file. Raises InvalidProfileError, with all that is wrong."""
    if isinstance(given, DecisionProfile):
        return given
    where, members = "decision", given
    if isinstance(given, str | Path):
        where = str(given)
        try:
            members = yaml.safe_load(Path(given).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidProfileError(f"{where}: cannot be read: {error}") from error
    try:
        return DecisionProfile.model_validate(members)
    except ValidationError as error:
        raise InvalidProfileError(f"{where}: {error}") from error
