"""Distance of an ONNX model from its fitted model: on references, mixtures and gaps."""

import itertools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rationale.conversion.graphs import INPUT, AsOnnx, Both
from rationale.conversion.rows import Rows
from rationale.conversion.texts import texts_of
from rationale.decisions.rows import ENDS
from rationale.errors import CheckFailedError, InvalidOptionError, UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.methods.logits import is_probability
from rationale.schema.manifest import Parity, Texts, in_digits, is_float
from rationale.tables.frames import shown

LIMIT = 1e-5  # of a column's range: float32 sums of a few hundred trees differ by a tenth of that
REFUSED = 1e-2  # of a column's range: beyond it, the ONNX model is another one
ADVICE = (
    "Fit a model of the kinds that docs/trees.md lists, or explain what stands behind the step that differs: "
    "give the last steps of a pipeline as the model, with rows as they come to them"
)
Words = Callable[[], str]
ANY = float(np.finfo(np.float64).max)  # allowed if scores alone are needed
MIXTURES = 2000
MASKED = 1000  # rows without one value; a fifth of that without several
_CELLS = 4_000_000  # limit on cells of such rows, if there are many columns
_ASKED = 200_000  # limit on columns in all questions about gaps that a model may refuse
_NARROW = 2e-5  # a smaller range of probabilities counts as this: a Sigmoid of float32 is off by a hundredth
_TEXTS = 50  # rows with a text that the fitted model does not know
_ROUNDING = 1e-6  # of a column's largest number: eight float32 steps, which make no other model


@dataclass(frozen=True)
class _Answers:
    """Answers of both models to rows.

    Attributes:
        names: names of the columns of all outputs of numbers.
        found, due: [M, columns] float64 of the ONNX model and of the fitted one.
        labels: [M] whether they differ; None if neither has any.
        base: [M] the reference that each row is, or is made of.
        words: [M] functions that describe each row in words, called for the worst row alone.
        lacks: [M, F] whether each feature was removed.
    """

    names: tuple[str, ...]
    found: np.ndarray
    due: np.ndarray
    labels: np.ndarray | None
    base: np.ndarray
    words: Sequence[Words]
    lacks: np.ndarray

    def __len__(self) -> int:
        return len(self.base)

    @property
    def errors(self) -> np.ndarray:
        """Errors [M, columns], infinite if one side alone has a number."""
        with np.errstate(invalid="ignore"):
            same = (self.found == self.due) | (np.isnan(self.found) & np.isnan(self.due))
            errors = np.where(same, 0, np.abs(self.found - self.due))
        return np.where(np.isnan(errors), np.inf, errors)

    def part(self, rows: np.ndarray) -> "_Answers":
        """Return the answers to some rows [M'], by index."""
        return replace(
            self,
            found=self.found[rows],
            due=self.due[rows],
            labels=None if self.labels is None else self.labels[rows],
            base=self.base[rows],
            words=[self.words[i] for i in rows],
            lacks=self.lacks[rows],
        )


@dataclass(frozen=True)
class _Scale:
    """The range and the largest number of each column [columns]."""

    spans: np.ndarray
    tops: np.ndarray

    def relative(self, errors: np.ndarray) -> np.ndarray:
        """Return errors [M, columns] relative to the range; unchanged if the range is 0."""
        return errors / np.where(self.spans > 0, self.spans, 1)

    def beyond(self, errors: np.ndarray, limit: float) -> np.ndarray:
        """Return [M, columns] whether an error exceeds both this share of the range and rounding."""
        return (self.relative(errors) > limit) & (errors > _ROUNDING * self.tops)


def check_allowed(allowed: float | None) -> None:
    """Raise InvalidOptionError unless `allowed` is a share of a range."""
    if allowed is not None and not 0 < allowed <= ANY:
        raise InvalidOptionError(
            f"--allow-parity {allowed}: give the share of a column's range by which the ONNX model may "
            "differ from the fitted one, such as 0.1."
        )


def compare(made: AsOnnx, model: str, converter: str, allowed: float | None = None) -> Parity | None:
    """Compare a converter's model with the fitted one; return None if there is no example.

    Args:
        model, converter: their names in messages.
        allowed: share of a column's range; see `demand`.

    Raises:
        UnsupportedModelError: if outputs have other shapes.
    """
    if made.feeds is None:
        return None
    runner = Runner(made.proto, users_model=True)
    count = len(next(iter(made.feeds.values())))
    words = [partial(_row, i) for i in range(count)]
    known = _answers(runner, made.feeds, made.answers, model, np.arange(count), words)
    mixed, gaps, words_of = None, _Gaps(), _Words()
    if made.both is not None and count:
        mixed = _mixtures(runner, made.both, model)
    closed = frozenset(o.name for o in made.proto.graph.output if is_probability(made.proto, o.name))
    scale = _scale([known] if mixed is None else [known, mixed], closed)
    if made.both is not None and count:
        limit = REFUSED if allowed is None else max(allowed, REFUSED)
        masking = _Masking(runner, made.both, model, scale, limit, by_column=made.by_column)
        gaps, words_of = masking.gaps(), masking.words(texts_of(made.proto))
    missing = _missing(made.feeds, count)
    samples = [s for s in (known, mixed, gaps.taken, words_of.taken) if s is not None and len(s)]
    worst, ends = _worst(samples, scale), _near_ends(samples, closed)
    labels = [s.labels for s in samples[: 1 if mixed is None else 2] if s.labels is not None]
    return Parity(
        model=model,
        converter=converter,
        rows=count,
        error=worst.error,
        output_range=worst.span,
        output_largest=worst.largest,
        column=worst.column,
        row=worst.row,
        where=worst.where,
        uncompared=_uncompared(runner, made),
        labels=int(sum(differ.sum() for differ in labels)) if labels else None,
        missing_rows=int(missing.sum()),
        missing_error=_largest(known.part(np.flatnonzero(missing)), scale),
        mixtures=0 if mixed is None else len(mixed),
        mixtures_error=_largest(mixed, scale),
        masked=0 if gaps.taken is None else len(gaps.taken),
        masked_error=_largest(gaps.taken, scale),
        ends=len(ends),
        ends_error=float(ends.max()) if len(ends) else None,
        takes_missing=(*gaps.takes, *words_of.takes),
        texts=words_of.rules,
        texts_differ=words_of.differs,
        refuses_missing=(*gaps.refuses, *words_of.refuses),
        missing_differs=gaps.differs or words_of.missing_differs,
        missing_unknown=gaps.unknown,
        allowed=allowed,
    )


def demand(parity: Parity) -> None:
    """Raise CheckFailedError if the ONNX model is another model than the fitted one."""
    limit, rows = max(REFUSED, parity.allowed or 0), parity.rows + parity.mixtures
    if parity.relative > limit and parity.error > _ROUNDING * parity.output_largest:
        fault = _differs(parity)
    elif not parity.column and (parity.labels or 0) > limit * rows:
        fault = f"{parity.labels} of {rows} labels differ"
    else:
        return
    raise CheckFailedError(
        f"the ONNX model that {parity.converter} made is not the {parity.model}: {fault}; {limit:.0%} is the "
        f"most. {ADVICE}; or allow it by --allow-parity (in Python allow_parity=) with a share above it."
    )


def summary(parity: Parity) -> str:
    """Describe a parity in one line."""
    labels = "" if parity.labels is None else f"; {parity.labels or 'no'} labels differ"
    on = {
        f"the {parity.missing_rows} with missing values": parity.missing_error,
        f"{parity.mixtures} mixtures of two": parity.mixtures_error,
        f"{parity.masked} with values taken out": parity.masked_error,
    }
    parts = "".join(f"; {error:.1e} on {rows}" for rows, error in on.items() if error is not None)
    if parity.ends_error is not None:
        parts += f"; {parity.ends_error:.1e} of the way to 0 or 1 on {parity.ends} within {ENDS:g} of them"
    column = f" of {parity.column}'s range" if parity.column else " of its output's range"
    return (
        f"parity: {parity.model} as ONNX ({parity.converter}) differs by {parity.error:.1e} at most on "
        f"{parity.rows} references and what is made of them, {parity.relative:.1e}{column}{parts}{labels}"
    )


def warnings_of(parity: Parity) -> tuple[str, ...]:
    """Return warnings about differences that are more than rounding."""
    found = []
    if parity.relative > LIMIT or parity.labels:
        labels = ""
        if parity.labels is not None:
            labels = f", and {parity.labels} of {parity.rows + parity.mixtures} labels differ"
        allowed = "" if parity.allowed is None else f" An error up to {parity.allowed:g} of it was allowed."
        found.append(
            f"the ONNX model is not quite the {parity.model} that it was converted from: {_differs(parity)}"
            f"{labels}. What is served and explained is the ONNX model.{allowed}"
        )
    if parity.uncompared:
        found.append(
            f"{shown(parity.uncompared)} of the ONNX model is nothing that the {parity.model} answers: it "
            "was not compared."
        )
    if parity.texts_differ:
        found.append(
            f"texts that the {parity.model} was not trained on are refused, though it answers them: the ONNX "
            f"model takes them for others ({parity.texts_differ})."
        )
    if parity.missing_differs:
        found.append(
            f"missing values in {shown(parity.refuses_missing)} are refused: the ONNX model takes them for "
            f"others than the {parity.model} does ({parity.missing_differs}). Impute them in front."
        )
    if parity.missing_unknown:
        found.append(
            f"a missing value of {shown(parity.missing_unknown)} is nothing that the {parity.model} answers, "
            "but the ONNX model may: do not send any."
        )
    return tuple(found)


def _differs(parity: Parity) -> str:
    return (
        f"at {parity.where} they differ by {parity.error:.3g} in {parity.column or 'the output'}, "
        f"{parity.relative:.2g} of its range of {parity.output_range:.3g}"
    )


def _answers(
    runner: Runner,
    feeds: Mapping[str, np.ndarray],
    answers: Sequence[np.ndarray | None],
    model: str,
    base: np.ndarray,
    words: Sequence[Words],
    mask: np.ndarray | None = None,
) -> _Answers:
    names, found, due = list[str](), [np.zeros((len(base), 0))], [np.zeros((len(base), 0))]
    labels: np.ndarray | None = None
    for (name, ours), theirs in zip(runner(feeds).items(), answers, strict=False):
        if theirs is None:
            continue
        if not is_float(ours.dtype):
            other = (_plain(ours) != _plain(np.asarray(theirs))).any(axis=1)
            labels = other if labels is None else labels | other
            continue
        a, b = _matching(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), model)
        first = np.asarray(ours).reshape(len(ours), -1).shape[1] - a.shape[1]
        names += [f"{name}[{first + i}]" for i in range(a.shape[1])] if a.shape[1] + first > 1 else [name]
        found.append(a)
        due.append(b)
    return _Answers(
        tuple(names),
        np.concatenate(found, axis=1),
        np.concatenate(due, axis=1),
        labels,
        base,
        words,
        np.zeros((len(base), 0), bool) if mask is None else mask,
    )


def _mixtures(runner: Runner, both: Both, model: str) -> _Answers | None:
    """Return answers to mixtures of two references; None if a row has one feature, or there is one row."""
    rows, features, random = len(both.rows), len(both.rows.has_words), np.random.default_rng(0)
    if features < 2 or rows < 2:
        return None
    count = min(MIXTURES, max(_CELLS // features, 1))
    base = np.arange(count) % rows
    other = (base + random.integers(1, rows, count)) % rows
    size = random.integers(1, features, count)  # each number of features is equally likely
    taken = random.random((count, features)).argsort(axis=1) < size[:, None]
    mixed = both.rows.mixed(np.where(taken, other[:, None], base[:, None]))
    words = [partial(_mixture, both, int(b), int(o), t) for b, o, t in zip(base, other, taken, strict=True)]
    return _answers(runner, both.feed(mixed), both.answer(mixed), model, base, words)


@dataclass(frozen=True)
class _Gaps:
    """The answers of both models to missing values.

    Attributes:
        taken: rows with gaps that both models answer, and that are served.
        takes, refuses: inputs that accept some missing values, and inputs that accept none.
        differs: a description of the worst row, if some of these would have wrong answers.
        unknown: features of other inputs that the fitted model needs for an answer.
    """

    taken: _Answers | None = None
    takes: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    differs: str = ""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Words:
    """The answers of the fitted model and the ONNX model to known, unknown and missing texts.

    Attributes:
        taken: rows with each text that both sides know.
        rules: see `Parity.texts`.
        takes, refuses: inputs in which a text may be missing, and in which none may.
        missing_differs, differs: the worst row, if the models differ on a missing or another text.
    """

    taken: _Answers | None = None
    rules: Mapping[str, tuple[Texts | None, ...]] = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    missing_differs: str = ""
    differs: str = ""


@dataclass(frozen=True)
class _Masking:
    """A comparison of both models on references that lack one value or several, or hold another text."""

    runner: Runner
    both: Both
    model: str
    scale: _Scale
    limit: float
    by_column: bool

    def gaps(self) -> _Gaps:
        words, read = self.both.rows.has_words, frozenset(self.both.feed(self.both.rows))
        features = [i for i, text in enumerate(words) if not text and self._input(i) in read]
        if not features:
            return _Gaps()
        single, unknown = self._single(features)
        parts = [single] if single is not None else []
        wrong = self._wrong(single)
        known = [f for f in features if f not in unknown and f not in wrong]
        several = self._several(known) if len(known) > 1 else None
        if several is not None:
            parts.append(several)
            wrong |= self._wrong(several)
        of_input: dict[str, set[int]] = {}
        for feature in features:
            of_input.setdefault(self._input(feature), set()).add(feature)
        refuses = tuple(n for n, own in of_input.items() if own & wrong or own <= set(unknown))
        out = np.array([self._input(i) in refuses for i in range(len(words))])
        kept = [part.part(np.flatnonzero(~part.lacks[:, out].any(axis=1))) for part in parts]
        return _Gaps(
            taken=_joined([part for part in kept if len(part)]),
            takes=tuple(name for name in of_input if name not in refuses),
            refuses=refuses,
            differs=self._worst(parts) if wrong else "",
            unknown=tuple(self.both.rows.called(f) for f in unknown if self._input(f) not in refuses),
        )

    def words(self, known: Mapping[tuple[str, int], frozenset[str]]) -> _Words:
        """Compare the models' answers to each known text, to another one and to a missing one.

        Args:
            known: the texts that the ONNX model tells apart, by input and column.
        """
        rows, read = self.both.rows, frozenset(self.both.feed(self.both.rows))
        found, taken, differs = dict[str, list[Texts | None]](), list[_Answers](), ["", ""]
        takes: dict[str, list[bool]] = {}
        for i in [i for i in range(len(rows.has_words)) if self._input(i) in read]:
            name = self._input(i)
            if not rows.has_words[i]:
                answered, rule, other = self._numbers(i, self.both.numbers.get(i, ()))
                taken += answered
                differs[1] = differs[1] or other
                found.setdefault(name, []).append(rule)
                continue
            own = known.get((name, len(found.get(name, ()))))
            missing = self._first(i, [*rows.missing_texts(i), *([""] if own and "" in own else [])])
            takes.setdefault(name, []).append(missing == "")
            differs[0] = differs[0] or missing or ""
            rule = None
            if own is not None:
                texts = sorted(own - {""})
                parts = self._with_each(i, texts)
                taken += [part for part in parts if part is not None]
                kept = tuple(text for text, part in zip(texts, parts, strict=True) if part is not None)
                others = [self._first(i, [text]) for text in _unseen({*texts, *map(str, rows.columns[i])})]
                if None not in others:
                    differs[1] = next(filter(None, (differs[1], *others)), "")
                is_taken = all(other == "" for other in others)
                rule = Texts(known=kept, others="unknown" if is_taken else "refused", missing=missing == "")
            found.setdefault(name, []).append(rule)
        rules = {name: tuple(own) for name, own in found.items() if any(own)}
        taking = tuple(name for name, each in takes.items() if any(each))
        refuses = tuple(name for name in takes if name not in taking)
        return _Words(_joined(taken), rules, taking, refuses, *differs)

    def _numbers(self, i: int, known: Collection[float]) -> tuple[list[_Answers], Texts | None, str]:
        """Return answers with each known number, the rule for others, and the worst row if they differ."""
        numbers = sorted(known)
        if not numbers:
            return [], None, ""
        parts = self._with_each(i, numbers)
        kept = tuple(in_digits(n) for n, part in zip(numbers, parts, strict=True) if part is not None)
        between = next(n + 1 for n in numbers if n + 1 not in known)
        others = [self._first(i, [number]) for number in (numbers[0] - 1, between, numbers[-1] + 1)]
        is_taken = all(other == "" for other in others)
        rule = Texts(known=kept, others="unknown" if is_taken else "refused", missing=True)
        differs = "" if None in others else next(filter(None, others), "")
        return [part for part in parts if part is not None], rule, differs

    def _first(self, i: int, values: Sequence[Any]) -> str | None:
        """Return "" if both models give one of these values of feature i the same answer.

        Return None if the fitted model refuses all of them, else a description of the difference.
        """
        differs = None
        for value in values:
            found = self._with_text(i, [value] * min(len(self.both.rows), _TEXTS))
            if found is None:
                continue
            if not self.scale.beyond(found.errors, self.limit).any():
                return ""
            differs = differs or self._worst([found])
        return differs

    def _with_each(self, i: int, texts: Sequence[str | float]) -> list[_Answers | None]:
        """Return answers with each text in feature i; None for one that the fitted model refuses."""
        if not texts:
            return []
        each = max(_TEXTS // len(texts), 1)
        found = self._with_text(i, np.tile(np.array(texts, object), each).tolist())
        if found is not None:
            return [found.part(np.arange(k, len(found), len(texts))) for k in range(len(texts))]
        if len(texts) == 1:
            return [None]
        half = len(texts) // 2
        return [*self._with_each(i, texts[:half]), *self._with_each(i, texts[half:])]

    def _with_text(self, i: int, values: Sequence[Any]) -> _Answers | None:
        """Return answers to references with these values in feature i; None if the fitted model refuses."""
        rows, base = self.both.rows, np.arange(len(values)) % len(self.both.rows)
        given = rows.mixed(np.repeat(base[:, None], len(rows.columns), axis=1)).with_column(i, values)
        words = [partial(_text, self.both, int(b), i, v) for b, v in zip(base, values, strict=True)]
        return self._asked(given, base, words, np.zeros((len(values), len(rows.columns)), bool))

    def _input(self, feature: int) -> str:
        return self.both.rows.called(feature) if self.by_column else INPUT

    def _single(self, features: Sequence[int]) -> tuple[_Answers | None, tuple[int, ...]]:
        """Return answers to rows without one value, and features that the fitted model cannot do without.

        Features that one step of the model reads are tested together: it takes a missing value in all of them
        or
        in none. If it refuses some, halves are tested, as often as `_ASKED` allows.
        """
        each = max(min(MASKED, _CELLS // len(features)) // len(features), 1)
        parts, unknown = list[_Answers](), list[int]()
        alike = [[f for f in group if f in features] for group in self.both.alike]
        rest = [f for f in features if not any(f in group for group in alike)]
        pending = [group for group in (*alike, rest) if group]
        least = len(pending)
        for asked in itertools.count():
            if not pending:
                break
            some = pending.pop(0)
            part = (
                self._answered(self._without(some, each))
                if asked < max(least, _ASKED // len(features))
                else None
            )
            half = len(some) // 2
            if part is not None:
                parts.append(part)
            elif half and asked < _ASKED // len(features):
                pending += [some[:half], some[half:]]
            else:
                unknown += some
        return _joined(parts), tuple(sorted(unknown))

    def _without(self, features: Sequence[int], each: int) -> np.ndarray:
        """Return masks [M, F] that each lack one feature, or several if there are many features."""
        width = len(self.both.rows.has_words)
        rows = min(len(features), max(_CELLS // width, 1))
        mask = np.zeros((rows, each, width), bool)
        mask[np.arange(len(features)) % rows, :, features] = True
        return mask.reshape(-1, width)

    def _several(self, features: Sequence[int]) -> _Answers | None:
        random = np.random.default_rng(1)
        count = max(min(MASKED, _CELLS // len(features)) // 5, 1)
        size = random.integers(2, len(features) + 1, count)
        mask = np.zeros((count, len(self.both.rows.has_words)), bool)
        mask[:, features] = random.random((count, len(features))).argsort(axis=1) < size[:, None]
        return self._answered(mask)

    def _answered(self, mask: np.ndarray) -> _Answers | None:
        """Return answers to masked rows; None if the fitted model refuses such rows."""
        base = np.arange(len(mask)) % len(self.both.rows)
        rows = self.both.rows.mixed(np.repeat(base[:, None], mask.shape[1], axis=1)).masked(mask)
        words = [partial(_gap, self.both, int(b), m) for b, m in zip(base, mask, strict=True)]
        return self._asked(rows, base, words, mask)

    def _asked(
        self, rows: Rows, base: np.ndarray, words: Sequence[Words], mask: np.ndarray
    ) -> _Answers | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers = self.both.answer(rows)
        except Exception:  # each library refuses rows by errors of its own kind
            return None
        return _answers(self.runner, self.both.feed(rows), answers, self.model, base, words, mask)

    def _wrong(self, found: _Answers | None) -> set[int]:
        """Return the features without which the models differ by more than is allowed."""
        if found is None:
            return set()
        rows = self.scale.beyond(found.errors, self.limit).any(axis=1)
        return set(map(int, np.flatnonzero(found.lacks[rows].any(axis=0))))

    def _worst(self, parts: Sequence[_Answers]) -> str:
        worst = _worst(parts, self.scale)
        return f"by {worst.error:.3g} in {worst.column}, {worst.relative:.2g} of its range, at {worst.where}"


def _row(row: int) -> str:
    return f"row {row} of the references"


def _mixture(both: Both, row: int, other: int, taken: np.ndarray) -> str:
    return f"{_row(row)} with {_named(both, taken)} of row {other}"


def _gap(both: Both, row: int, mask: np.ndarray) -> str:
    return f"{_row(row)} without {_named(both, mask)}"


def _text(both: Both, row: int, feature: int, value: Any) -> str:
    return f"{_row(row)} with {both.rows.called(feature)!r} of {value!r}"


def _unseen(known: Collection[str]) -> list[str]:
    """Return unknown texts: one before, one among and one behind the known ones in the alphabet.

    XGBoost takes some that lie between two categories, and refuses others.
    """
    text = "no such text"
    while any(text in each for each in known):
        text += "_"
    return ["!" + text, text, "~" + text]


def _named(both: Both, features: np.ndarray) -> str:
    return shown([both.rows.called(int(i)) for i in np.flatnonzero(features)])


def _joined(parts: Sequence[_Answers]) -> _Answers | None:
    if not parts:
        return None
    first = parts[0]

    def every(values: Sequence[np.ndarray | None]) -> Any:
        return None if values[0] is None else np.concatenate([v for v in values if v is not None])

    return _Answers(
        first.names,
        every([p.found for p in parts]),
        every([p.due for p in parts]),
        every([p.labels for p in parts]),
        every([p.base for p in parts]),
        [w for p in parts for w in p.words],
        every([p.lacks for p in parts]),
    )


def _are_of(names: Sequence[str], outputs: frozenset[str]) -> np.ndarray:
    """Return [columns] whether each belongs to one of the outputs."""
    return np.array([name in outputs or name.rpartition("[")[0] in outputs for name in names], bool)


def _near_ends(samples: Sequence[_Answers], closed: frozenset[str]) -> np.ndarray:
    """Return the errors of probabilities near 0 or 1, as shares of the way there."""
    found = [np.zeros(0)]
    for sample in samples:
        columns = _are_of(sample.names, closed)
        due, errors = sample.due[:, columns], sample.errors[:, columns]
        away = np.minimum(due, 1 - due)
        near = (away > 0) & (away <= ENDS)
        found.append(errors[near] / away[near])
    return np.concatenate(found)


def _scale(samples: Sequence[_Answers], closed: frozenset[str] = frozenset()) -> _Scale:
    """Return the range of the fitted model's answers; if all are equal, their size.

    Args:
        closed: outputs of probabilities, whose range is `_NARROW` at least.
    """
    due = np.concatenate([s.due for s in samples])
    known = np.where(np.isfinite(due), due, np.nan)
    columns = [column[~np.isnan(column)] for column in known.T]
    tops = np.array([np.abs(c).max(initial=0) for c in columns])
    spans = np.array([np.ptp(c) if len(c) else 0 for c in columns])
    least = np.where(_are_of(samples[0].names, closed), _NARROW, 0)
    return _Scale(np.maximum(np.where(spans > 0, spans, tops), least), tops)


@dataclass(frozen=True)
class _Worst:
    """The error that is largest relative to its column's range."""

    error: float = 0.0
    relative: float = -1.0
    span: float = 0.0
    largest: float = 0.0
    column: str = ""
    row: int = 0
    where: str = ""


def _worst(samples: Sequence[_Answers], scale: _Scale) -> _Worst:
    worst = _Worst()
    for sample in samples:
        errors = sample.errors
        relative = scale.relative(errors)
        if not errors.size or relative.max() <= worst.relative:
            continue
        row, column = map(int, np.unravel_index(relative.argmax(), relative.shape))
        worst = _Worst(
            error=float(errors[row, column]),
            relative=float(relative[row, column]),
            span=float(scale.spans[column]),
            largest=float(scale.tops[column]),
            column=sample.names[column],
            row=int(sample.base[row]),
            where=sample.words[row](),
        )
    return worst


def _largest(answers: _Answers | None, scale: _Scale) -> float | None:
    """Return the largest error relative to its column's range; None without rows."""
    if answers is None or not len(answers):
        return None
    return float(scale.relative(answers.errors).max(initial=0))


def _uncompared(runner: Runner, made: AsOnnx) -> tuple[str, ...]:
    pairs = zip(runner(made.feeds or {}).items(), made.answers, strict=False)
    return tuple(name for (name, ours), theirs in pairs if theirs is None and is_float(ours.dtype))


def _missing(feeds: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return [K] whether a row has a gap."""
    missing = np.zeros(count, bool)
    for array in feeds.values():
        if is_float(array.dtype):
            missing |= np.isnan(array.reshape(count, -1)).any(axis=1)
    return missing


def _matching(found: np.ndarray, due: np.ndarray, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both as [K, C].

    A booster gives the probability of class 1 alone, its ONNX model those of both classes.
    """
    a, b = found.reshape(len(found), -1), due.reshape(len(due), -1)
    if a.shape[1] == 2 and b.shape[1] == 1:
        a = a[:, 1:]
    if a.shape != b.shape:
        raise UnsupportedModelError(
            f"{model}: its ONNX model answers {list(found.shape)} where it answers {list(due.shape)} itself: "
            f"the converter does not know this kind of model. {ADVICE}."
        )
    return a, b


def _plain(labels: np.ndarray) -> np.ndarray:
    """Return labels [K, C] in a type that both sides share: float64 or text."""
    flat = labels.reshape(len(labels), -1)
    if flat.dtype.kind in "iufb":
        return flat.astype(np.float64)
    return flat.astype(str)
