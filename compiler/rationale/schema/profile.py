"""`decision.yaml`: the rules by which a model's output becomes a decision, and an explanation its reasons.

A lender writes it, `rationale compile --decision` checks it against the model and embeds it in the manifest,
and the service decides by it. docs/adr/0038-decisions.md says why it stands in the compiled entry.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticSerializationError

from rationale.errors import InvalidOptionError, InvalidProfileError, near, quoted

_OUTPUT = re.compile(r"(?P<tensor>.+?)(\[(?P<index>\d{1,9})\])?")
_FLAG, _WHOLE, _NUMBER = (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))
_SHARE = re.compile(r"(\d{1,4}(\.\d{1,9})?) ?%")
_LARGEST = 1 << 20  # bytes of a file
_MOST, _LONGEST = 20, 80  # in a message: faults, characters of a value
POLICIES = ("near_threshold", "all_applicants", "approved", "custom")
# The comment 9(b)(2)-5 on Regulation B, 12 CFR 1002.9, names these two.
NAMED_BY_REGULATION_B = ("near_threshold", "all_applicants")
ENGLISH = ("en",)
# Languages and regions that write 0.5 with a point, after the Unicode CLDR; others write 0,5
_WITH_POINT = frozenset(
    "am bn cy en fil ga gu he hi ja kn ko ml mr ms mt my ne pa si sw ta te th ur zh "
    "de-CH de-LI es-MX es-US it-CH".split()
)
# The languages of the profile that is read, and the one in which its texts are read
_READING = ContextVar[tuple[Sequence[str], str]]("_READING", default=(ENGLISH, "en"))

Number = Annotated[float, Strict()]  # not the text "0.2", nor yes
Flag = Annotated[bool, Strict()]
Text = Annotated[str, StringConstraints(pattern=r"\S")]  # not blank
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}(-[A-Z]{2})?$")]


def _as_languages(languages: tuple[str, ...]) -> tuple[str, ...]:
    """Check that there is a language, and none twice."""
    if not languages or len({*languages}) < len(languages):
        fault = "must name at least one language, and each once"
        raise PydanticCustomError("language", "{fault}", {"fault": fault})
    return languages


def _in_language(given: Any) -> Any:
    """Return a text in the language that is read, if it is given in each of the profile's languages."""
    languages, language = _READING.get()
    texts = {languages[0]: given} if isinstance(given, str) else given
    if not isinstance(texts, Mapping):
        return given
    if unknown := [str(name) for name in texts if name not in languages]:
        fault = f"is given in {quoted(unknown)}: the profile's languages are {quoted(languages)}"
        raise PydanticCustomError("language", "{fault}", {"fault": fault})
    if missing := [name for name in languages if name not in texts]:
        fault = f"is missing in {quoted(missing)}"
        raise PydanticCustomError("language", "{fault}", {"fault": fault})
    return texts[language]


# A text for people: one, or a mapping of languages to texts
Words = Annotated[Text, BeforeValidator(_in_language, json_schema_input_type=str | dict[Language, str])]


def _as_change(given: Any) -> Any:
    """Check the largest change of a value, a number or a share such as 20%."""
    share = _SHARE.fullmatch(given) if isinstance(given, str) else None
    number = float(share[1]) if share else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise PydanticCustomError("largest_change", "a number above 0, or a share such as 20%")
    return given


Change = Annotated[float | str, BeforeValidator(_as_change)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ExplainedRule(_Strict):
    """The texts of a feature, or of a group, and its reason."""

    title: Words | None = Field(None, description="title for people; by default the feature's name")
    unit: Words | None = None
    type: Literal["number", "category", "flag"] | None = None
    reason: Text | None = Field(None, description="code of its reason")


class FeatureRule(ExplainedRule):
    """The texts of a feature, and the values that it accepts; a missing value is always accepted."""

    least: Number | None = None
    most: Number | None = None
    categories: dict[str, Words] = Field({}, description="labels by value")
    open: Flag = Field(False, description="whether it accepts values beside the categories")

    def label(self, value: Any) -> str | None:
        """Return the title of a value, if it is one of its categories; texts have to be equal."""
        title = self.categories.get(as_category(value))
        if title is not None or isinstance(value, str):
            return title
        return next((label for key, label in self.categories.items() if number_of(key) == value), None)

    @property
    def is_bounded(self) -> bool:
        """True if it excludes any values."""
        closed = bool(self.categories) and not self.open
        return closed or self.least is not None or self.most is not None


class GroupRule(ExplainedRule):
    """Features that are explained as one: a category's one-hot columns, or features with the same meaning."""

    members: tuple[Text, ...] = Field(min_length=1)


class Condition(_Strict):
    """A condition on a value: above, below, between both (without the ends), or equal."""

    above: Number | None = None
    below: Number | None = None
    equals: Number | Flag | str | None = None


class Wording(Condition):
    """A text that is used only for some values of the feature."""

    text: Words


class ReasonText(_Strict):
    """A reason as an applicant reads it."""

    text: Words
    missing: Words | None = Field(None, description="text if the value is missing")
    when: tuple[Wording, ...] = Field((), description="texts for some values; the first that fits counts")
    inquiry: Flag = Field(
        False, description="reason about inquiries, which may exceed max_reasons by one, FCRA 609(f)(9)"
    )

    @property
    def wordings(self) -> tuple[str | None, ...]:
        """All its texts; those of a translation are in the same order."""
        return self.text, self.missing, *(each.text for each in self.when)


class KnockOut(Condition):
    """A factor that declines by itself, one of the model's features or not; its reason is the only one."""

    feature: Text
    reason: Text


class Action(_Strict):
    """The changes of a feature, or of a group of one-hot columns, that an applicant can make."""

    direction: Literal["up", "down", "either"] = "either"
    step: Number | None = Field(None, gt=0, description="changed values are whole multiples of it")
    most: Change | None = Field(
        None, description="the largest change, a number or its share of the applicant's value: 20%"
    )
    cost: Number = Field(1.0, gt=0, description="factor of a change's cost: 2 for one that is twice as hard")
    moves: tuple[Text, ...] = Field(
        (), description="features that change by the same amount, such as a total"
    )

    def largest_change(self, value: float) -> float | None:
        """Return the largest change of a value; None if there is no limit."""
        if isinstance(self.most, str):
            return abs(value) * float(self.most.rstrip(" %")) / 100
        return self.most


class ReferencePolicy(_Strict):
    """The population that an applicant is compared with."""

    policy: Literal["near_threshold", "all_applicants", "approved", "custom"] = "custom"


class ReviewRule(_Strict):
    """The review of referred and contested decisions by a person."""

    within: Annotated[str, StringConstraints(pattern=r"^[1-9]\d{0,3}d$")] = Field(
        "30d", description="days until a person has to have reviewed a decision, such as 30d"
    )

    @property
    def days(self) -> int:
        return int(self.within.removesuffix("d"))


class NoticeRule(_Strict):
    """The contents of a notice besides the principal reasons."""

    recourse: Flag = Field(
        False, description="whether it tells the plans of a decision that was made with recourse"
    )


def _as_reason(reason: Any) -> Any:
    languages, _ = _READING.get()
    is_text = isinstance(reason, str) or (isinstance(reason, Mapping) and not {*languages}.isdisjoint(reason))
    return {"text": reason} if is_text else reason


Reason = Annotated[
    ReasonText,
    BeforeValidator(_as_reason, json_schema_input_type=str | dict[Language, str] | ReasonText),
]


class Translation(_Strict):
    """The parts of a profile that have texts, in another language than its first."""

    features: dict[str, FeatureRule] = {}
    groups: dict[str, GroupRule] = {}
    reasons: dict[str, ReasonText] = {}


class DecisionProfile(_Strict):
    """The rules of one decision. Features and groups are named by the model's own names.

    Attributes:
        version: version of these keys; a release refuses a profile of a newer version.
        output: the score, a tensor or an element of its flattened row, TENSOR[index]. A tensor of one element
            needs no index, nor does one of two, which are classes: the score is the second one.
        adverse: the side of the threshold on which a score is adverse; a score equal to the threshold passes.
        refer: scores from low to high, both included, that a person decides.
        space: the sum of attributions: the score, or the margin whose Sigmoid is the score.
        outside: the answer to an applicant with a value that its feature does not accept: no decision, or one
            with a warning.
        actionable: features and one-hot groups that an applicant can change, and how; no others are part of
            a plan.
        languages: languages of the texts. If there are several, each text is a mapping with all of them; this
            profile has those of the first.
        translations: the texts in the other languages; they are read from the same mappings.
        least_share: the share of all adverse attributions below which none but the largest is a reason.
        never_disclose: features and groups that no notice may name. It is an error if one is a principal
            reason: a notice without it would give other reasons than the true ones.
        protected: attributes that the model must not have as inputs, except those in `allow_protected`.
        output_range: least and largest score, if neither a closing Sigmoid or Softmax nor the references
            show them.
        tolerance: completeness gap above which there are no reasons, in units of the explained value; by
            default 1e-4 of the output's range.
    """

    version: Literal[1] = 1
    output: Text
    threshold: Number
    refer: tuple[Number, Number] | None = None
    adverse: Literal["above", "below"]
    space: Literal["output", "margin"] = "output"
    references: ReferencePolicy = ReferencePolicy()
    max_reasons: Annotated[int, Strict()] = Field(4, ge=1)
    least_share: Number = Field(0.01, ge=0, le=1)
    features: dict[str, FeatureRule] = {}
    groups: dict[str, GroupRule] = {}
    reasons: dict[str, Reason] = {}
    knock_outs: tuple[KnockOut, ...] = ()
    outside: Literal["refuse", "warn"] = "refuse"
    actionable: dict[str, Action] = {}
    review: ReviewRule = ReviewRule()
    never_disclose: tuple[Text, ...] = ()
    protected: tuple[Text, ...] = ()
    allow_protected: tuple[Text, ...] = ()
    output_range: tuple[Number, Number] | None = None
    tolerance: Number | None = Field(None, gt=0)
    languages: Annotated[tuple[Language, ...], AfterValidator(_as_languages)] = ENGLISH
    translations: SkipJsonSchema[dict[str, Translation]] = {}
    notice: NoticeRule = NoticeRule()

    @model_validator(mode="wrap")
    @classmethod
    def _read_languages(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Read the texts of each language; a profile in an entry has them read."""
        declared = given.get("languages") if isinstance(given, Mapping) else None
        is_list = isinstance(declared, list | tuple) and all(isinstance(name, str) for name in declared)
        languages = tuple(declared) if declared and is_list else ENGLISH
        if isinstance(given, Mapping) and given.get("translations"):
            return read(given)
        profiles = list[Self]()
        for language in languages:
            token = _READING.set((languages, language))
            try:
                profiles.append(read(given))
            finally:
                _READING.reset(token)
        translations = {
            language: Translation(features=each.features, groups=each.groups, reasons=each.reasons)
            for language, each in zip(languages[1:], profiles[1:], strict=True)
        }
        return profiles[0].model_copy(update={"translations": translations}) if translations else profiles[0]

    @property
    def language(self) -> str:
        """The language of its texts."""
        return self.languages[0]

    def in_language(self, language: str) -> Self:
        """Return the profile with its texts in a language, and in no other.

        Raises:
            InvalidOptionError: if it has no texts in it.
        """
        if language not in self.languages:
            raise InvalidOptionError(
                f"language '{language[:_LONGEST]}': the decision profile has {quoted(self.languages)}"
            )
        texts = vars(self.translations[language]) if language != self.language else {}
        return self.model_copy(update={**texts, "languages": (language,), "translations": {}})

    def number(self, value: Any) -> str:
        """Return a value as its language writes numbers."""
        text = as_category(value)
        has_point = {self.language, self.language.partition("-")[0]} & _WITH_POINT
        return text if has_point or not isinstance(value, float) else text.replace(".", ",")

    @cached_property
    def tensor(self) -> str:
        """The output without an index."""
        return self._output()[0]

    @cached_property
    def index(self) -> int | None:
        """The index in the flattened row, if there is one."""
        return self._output()[1]

    def _output(self) -> tuple[str, int | None]:
        return parse_output(self.output)

    def rule(self, key: str) -> ExplainedRule:
        """Return the rule of a feature or group; an empty one if the profile has none."""
        return self.groups.get(key) or self.features.get(key) or ExplainedRule()

    def title(self, key: str) -> str:
        """Return the title of a feature or group, for people."""
        return self.rule(key).title or key

    @property
    def digest(self) -> str:
        """SHA-256 of the profile as JSON, in its own order: of tied reasons, the first in it comes first."""
        return sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()


def as_category(value: Any) -> str:
    """Return a value as a key of `categories`: 1 of 1.0, true of True."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def number_of(key: str) -> float | None:
    """Return the number that a key of `categories` writes."""
    try:
        return float(key)
    except ValueError:
        return None


def parse_output(output: str) -> tuple[str, int | None]:
    """Return the tensor and the index of "probabilities[1]"; None for the index if there is none."""
    match = _OUTPUT.fullmatch(output)
    if match is None:
        return output, None
    return match["tensor"], None if match["index"] is None else int(match["index"])


def as_profile(profile: DecisionProfile | Mapping[str, Any] | str | Path) -> DecisionProfile:
    """Return a profile from its members, or from a YAML file, or the profile itself.

    A compile checks whether it makes sense.

    Raises:
        InvalidProfileError: if it cannot be read, keys are unknown or missing, or values are of another kind;
            the text names all of them.
    """
    if isinstance(profile, DecisionProfile):
        return profile
    where, members, faults = "decision", profile, list[str]()
    if isinstance(profile, str | Path):
        where = str(profile)
        members, faults = _read(Path(profile))
    if not isinstance(members, Mapping):
        fault = f"a profile is a mapping of keys such as output and threshold, not {_yaml_text(members)}"
        raise profile_error(where, [fault])
    try:
        parsed = DecisionProfile.model_validate(dict(members))
        _ = parsed.digest
    except PydanticSerializationError:
        faults.append(
            "a name or value is not valid Unicode: it contains half of a character (\\ud800 to \\udfff)"
        )
    except ValidationError as error:
        faults += _messages(error)
    if faults:
        raise profile_error(where, faults)
    return parsed


def profile_error(where: str, faults: Sequence[str]) -> InvalidProfileError:
    """Return one error for all faults."""
    numbered = " ".join(f"({i}) {fault}." for i, fault in enumerate(faults[:_MOST], 1))
    first = f", of which the first {_MOST}" * (len(faults) > _MOST)
    text = f"{faults[0]}." if len(faults) == 1 else f"{len(faults)} problems{first}: {numbered}"
    return InvalidProfileError(f"{where}: {text.encode(errors='backslashreplace').decode()}")


# -- a file ----------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """A loader of YAML without aliases, whose copies of copies may fill any memory; it notes duplicate keys.

    As in YAML 1.2, flags are true and false alone, so that NO stays a text; 1e-4 is a number, 10:30 and 007
    are none.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  # of the class there too
        first: [(tag, form) for tag, form in resolvers if tag not in (_FLAG, _WHOLE, _NUMBER)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.doubled: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(
                f"line {self.line + 1}: aliases (*name) are not supported: write the value out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            name = f"{key.value}"
            if isinstance(key, yaml.ScalarNode) and name in seen:
                self.doubled.append(f"line {key.start_mark.line + 1}: '{name[:_LONGEST]}' is given twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(_FLAG, re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), [*"tTfF"])
_Loader.add_implicit_resolver(_WHOLE, re.compile(r"[-+]?(0|[1-9]\d*)\Z"), [*"-+0123456789"])
_Loader.add_implicit_resolver(
    _NUMBER,
    re.compile(
        r"([-+]?(\.\d+|\d+\.\d*)([eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
    ),
    [*"-+.0123456789"],
)


def _read(path: Path) -> tuple[Any, list[str]]:
    """Return a file's content, and its duplicate keys; raise InvalidProfileError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that holds a NUL
        raise InvalidProfileError(f"{path}: cannot be read: {error}.") from error
    if len(content) > _LARGEST:
        raise InvalidProfileError(
            f"{path}: is larger than {_LARGEST >> 20} MiB: this is probably not a decision profile."
        )
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        return loader.get_single_data(), loader.doubled
    except UnicodeDecodeError as error:
        raise InvalidProfileError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}.") from error
    except RecursionError as error:
        raise InvalidProfileError(f"{path}: is nested too deep for a decision profile.") from error
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
    ) as error:  # invalid dates and flags
        raise InvalidProfileError(f"{path}: is not YAML: {' '.join(str(error).split())}.") from error


# -- what pydantic finds, in a lender's words ------------------------------------------------------------

_MODELS: Mapping[tuple[str, int], type[BaseModel]] = {  # by a place's first part, and its number of parts
    ("", 0): DecisionProfile,
    ("references", 1): ReferencePolicy,
    ("notice", 1): NoticeRule,
    ("features", 2): FeatureRule,
    ("groups", 2): GroupRule,
    ("reasons", 2): ReasonText,
    ("reasons", 4): Wording,
    ("knock_outs", 2): KnockOut,
    ("actionable", 2): Action,
}
_EXPECTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a text",
    "string_unicode": "a text of Unicode",
    "invalid_key": "a text",
    "string_pattern_mismatch": "a text that is not blank",
    "literal_error": "{expected}",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length}",
}


def _messages(error: ValidationError) -> Iterator[str]:
    """Yield a sentence for each place with an error."""
    messages = dict[str, str]()
    for detail in error.errors(include_url=False):
        loc = list(detail["loc"])
        if loc[-1] == "[key]" and detail["type"] != "extra_forbidden":  # False would stand as 0 before it
            loc[-2:] = [str(detail["input"])]
        if _is_condition(loc[:-1]):  # one of the kinds that it may be compared with
            loc.pop()
        messages.setdefault(".".join(map(str, loc))[:_LONGEST], _fault(detail, loc))
    yield from (f"{where} {fault}" for where, fault in messages.items())


def _is_condition(loc: Sequence[str | int]) -> bool:
    """Tell whether it is the place of an `equals`."""
    return (loc[:1], loc[2:]) == (["knock_outs"], ["equals"]) or (
        (loc[:1], loc[2:3], loc[4:]) == (["reasons"], ["when"], ["equals"])
    )


def _fault(detail: ErrorDetails, loc: Sequence[str | int]) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "missing":
        return "is missing"
    if kind == "language":
        return detail["msg"]
    if kind == "extra_forbidden":
        first = str(loc[0]) if len(loc) > 1 else ""
        keys = [key for key in _MODELS[first, len(loc) - 1].model_fields if key != "translations"]
        return f"is not a key of a profile{near(str(loc[-1]), keys)}: there are {', '.join(keys)}"
    expected = _EXPECTED.get(kind, detail["msg"]).format(**detail.get("ctx", {}))
    if _is_condition(loc):
        expected = "a number, a flag or a text"
    if kind == "string_pattern_mismatch" and loc[0] == "languages":
        expected = "a language such as en or de-AT"
    if kind == "model_type" and loc[0] == "reasons" and len(loc) == 2:
        expected = "a text, or a mapping with the key text"
    quote = ": put it in quotes" * (
        "a text" in expected and not isinstance(value, str | Mapping | list | None)
    )
    newer = loc == ["version"] and isinstance(value, int) and value > 1
    advice = ": use the newer Rationale for which it was written" * newer
    return f"must be {expected}, not {_yaml_text(value)}{quote}{advice}"


def _yaml_text(value: Any) -> str:
    """Return a value as YAML writes it."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    kinds = {bool: "the flag ", int: "the number ", float: "the number ", str: "the text "}
    shown = str(value).lower() if isinstance(value, bool) else _shorten(value)
    return kinds.get(type(value), f"the {type(value).__name__} ") + shown


def _shorten(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value[:_LONGEST]}'"
    try:
        return str(value)[:_LONGEST]
    except ValueError:  # a whole number of too many digits
        return "too long to be shown"
