"""Distance of an ONNX model from its fitted model: the largest error on each kind of row."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rationale.conversion.graphs import INPUT, ConversionResult, ModelPair
from rationale.conversion.rows import Rows
from rationale.conversion.texts import looked_up_texts
from rationale.decisions.rows import ENDS
from rationale.errors import CheckFailedError, InvalidOptionError, UnsupportedModelError, quoted
from rationale.graph.runtime.session import Runner
from rationale.methods.logits import is_probability
from rationale.schema.manifest import Parity, RowErrors, RowKind, Texts, in_digits, is_float

LIMIT = 1e-5  # of a column's range: float32 sums of a few hundred trees differ by a tenth of that
REFUSED = 1e-2  # of a column's range: beyond it, the ONNX model is another one
ADVICE = (
    "Fit a kind of model that docs/trees.md lists, or compile only the steps of the pipeline after the "
    "one that differs, with the rows that these steps receive"
)
ANY = float(np.finfo(np.float64).max)  # allowed if scores alone are needed
MIXTURES = 2000
MASKED = 1000  # rows without one value; a fifth of that without several
_CELLS = 4_000_000  # limit on cells of such rows, if there are many columns
_QUESTIONS = 200_000  # limit on columns in all questions about gaps that a model may refuse
_NARROW = 2e-5  # a smaller range of probabilities counts as this: a Sigmoid of float32 is off by a hundredth
_TEXTS = 50  # rows with a text that the fitted model does not know
_ROUNDING = 1e-6  # of a column's largest number: eight float32 steps, which make no other model
_KINDS: dict[RowKind, str] = {  # that the summary lists
    "incomplete": "the {} with missing values",
    "mixtures": "{} mixtures of two",
    "masked": "{} with values taken out",
    "categories": "{} with the categories that it knows",
    "unknown_categories": "{} with other categories",
}


def check_allowed(allowed: float | None) -> None:
    """Raise InvalidOptionError unless `allowed` is a share of a range."""
    if allowed is not None and not 0 < allowed <= ANY:
        raise InvalidOptionError(
            f"--allow-parity {allowed}: give the share of a column's range by which the ONNX model may "
            "differ from the fitted one, such as 0.1."
        )


def compare(
    converted: ConversionResult, model: str, converter: str, allowed: float | None = None
) -> Parity | None:
    """Compare a converter's model with the fitted one; return None if there is no example.

    Args:
        model, converter: their names in messages.
        allowed: share of a column's range; see `refuse_another_model`.

    Raises:
        UnsupportedModelError: if outputs have other shapes.
    """
    if converted.feeds is None:
        return None
    runner = Runner(converted.proto, users_model=True)
    outputs, count = runner(converted.feeds), len(next(iter(converted.feeds.values())))
    references = _compare_rows("references", outputs, converted.answers, model, np.arange(count), _reference)
    rows = [references, replace(references.select(_incomplete(converted.feeds, count)), kind="incomplete")]
    pair = converted.pair if count else None
    if pair is not None:
        rows += _mixtures(runner, pair, model)
    probabilities = {o.name for o in converted.proto.graph.output if is_probability(converted.proto, o.name)}
    scale = _scale(rows, probabilities)
    takes, unanswered, texts = dict[str, bool](), dict[str, str](), dict[str, tuple[Texts | None, ...]]()
    if pair is not None:
        limit = REFUSED if allowed is None else max(allowed, REFUSED)
        questions = _Questions(runner, pair, model, scale, limit, converted.by_column, rows, takes)
        unanswered = questions.ask_without_numbers()
        texts = questions.ask_categories(looked_up_texts(converted.proto))
    uncompared = (
        name
        for (name, values), answers in zip(outputs.items(), converted.answers, strict=False)
        if answers is None and is_float(values.dtype)
    )
    return Parity(
        model=model,
        converter=converter,
        errors=tuple(_errors(rows, scale, probabilities)),
        uncompared=tuple(uncompared),
        takes_missing=tuple(name for name in takes if takes[name]),
        refuses_missing=tuple(name for name in takes if not takes[name]),
        missing_unknown=tuple(feature for feature, name in unanswered.items() if takes[name]),
        texts=texts,
        allowed=allowed,
    )


def refuse_another_model(parity: Parity) -> None:
    """Raise CheckFailedError if the ONNX model is another model than the fitted one."""
    limit, worst = max(REFUSED, parity.allowed or 0), parity.worst
    rows = sum(errors.rows for errors in parity.compared)
    if worst.relative > limit and worst.error > _ROUNDING * worst.output_largest:
        fault = _difference(worst)
    elif not worst.column and (parity.labels or 0) > limit * rows:
        fault = f"{parity.labels} of {rows} labels differ"
    else:
        return
    raise CheckFailedError(
        f"the ONNX model that {parity.converter} made differs too much from the {parity.model}: {fault}; the "
        f"limit is {limit:.0%}. {ADVICE}; or allow more by --allow-parity (in Python allow_parity=)."
    )


def describe_parity(parity: Parity) -> str:
    """Describe a parity in one line."""
    worst, near = parity.worst, parity.errors_on("near_bounds")
    clauses = [
        f"{errors.relative:.1e} on {_KINDS[errors.kind].format(errors.rows)}"
        for errors in parity.errors
        if errors.kind in _KINDS and not errors.refused
    ]
    if near is not None:
        clauses.append(f"{near.relative:.1e} of the way to 0 or 1 on {near.rows} within {ENDS:g} of them")
    if parity.labels is not None:
        clauses.append(f"{parity.labels or 'no'} labels differ")
    return "; ".join(
        [
            f"parity: {parity.model} as ONNX ({parity.converter}) differs by {worst.error:.1e} at most on "
            f"{parity.errors[0].rows} references and variants of them, {worst.relative:.1e} of "
            f"{worst.column or 'its output'}'s range",
            *clauses,
        ]
    )


def parity_warnings(parity: Parity) -> tuple[str, ...]:
    """Return warnings about differences that are more than rounding."""
    texts = []
    if parity.relative > LIMIT or parity.labels:
        labels = ""
        if parity.labels is not None:
            labels = f", and {parity.labels} of {sum(e.rows for e in parity.compared)} labels differ"
        allowed = "" if parity.allowed is None else f" An error up to {parity.allowed:g} of it was allowed."
        texts.append(
            f"the ONNX model differs from the {parity.model} that it was converted from: "
            f"{_difference(parity.worst)}{labels}. The ONNX model is served and explained.{allowed}"
        )
    if parity.uncompared:
        texts.append(
            f"the {parity.model} does not answer {quoted(parity.uncompared)} of the ONNX model, so nothing "
            "was compared there."
        )
    if (categories := parity.errors_on("unknown_categories", refused=True)) is not None:
        texts.append(
            f"the entry refuses texts that the {parity.model} was not trained on: the ONNX model answers "
            f"them otherwise ({_difference(categories)})."
        )
    if (masked := parity.errors_on("masked", refused=True)) is not None:
        texts.append(
            f"the entry refuses missing values in {quoted(parity.refuses_missing)}: the ONNX model answers "
            f"them otherwise than the {parity.model} ({_difference(masked)}). Impute them before the model."
        )
    if parity.missing_unknown:
        texts.append(
            f"the {parity.model} does not answer rows without a value of {quoted(parity.missing_unknown)}, "
            "but the ONNX model may: send a value in each row."
        )
    return tuple(texts)


def _difference(errors: RowErrors) -> str:
    return (
        f"at {errors.where} they differ by {errors.error:.3g} in {errors.column or 'the output'}, "
        f"{errors.relative:.2g} of its range of {errors.output_range:.3g}"
    )


@dataclass(frozen=True)
class _ComparedRows:
    """Rows of one kind, and the answers of both models to them.

    Attributes:
        columns: names of the columns of all outputs of numbers.
        answers: [M, columns] float64 of the ONNX model.
        expected: [M, columns] float64 of the fitted model.
        labels: [M] whether they differ; None if neither has any.
        base: [M] the reference that each row is, or is made of.
        describe: a function that describes a row, by its index, in words.
        masked: [M, F] whether the value of each feature was taken out.
        refused: whether the entry refuses such rows.
    """

    kind: RowKind
    columns: tuple[str, ...]
    answers: np.ndarray
    expected: np.ndarray
    labels: np.ndarray | None
    base: np.ndarray
    describe: Callable[[int], str]
    masked: np.ndarray
    refused: bool = False

    def __len__(self) -> int:
        return len(self.base)

    @property
    def errors(self) -> np.ndarray:
        """Errors [M, columns], infinite if one side alone has a number."""
        with np.errstate(invalid="ignore"):
            same = (self.answers == self.expected) | (np.isnan(self.answers) & np.isnan(self.expected))
            errors = np.where(same, 0, np.abs(self.answers - self.expected))
        return np.where(np.isnan(errors), np.inf, errors)

    def select(self, chosen: np.ndarray) -> "_ComparedRows":
        """Return some rows, by a mask [M]."""
        rows = np.flatnonzero(chosen)
        return replace(
            self,
            answers=self.answers[rows],
            expected=self.expected[rows],
            labels=None if self.labels is None else self.labels[rows],
            base=self.base[rows],
            describe=lambda i: self.describe(int(rows[i])),
            masked=self.masked[rows],
        )


def _compare_rows(
    kind: RowKind,
    outputs: Mapping[str, np.ndarray],
    fitted: Sequence[np.ndarray | None],
    model: str,
    base: np.ndarray,
    describe: Callable[[int], str],
    masked: np.ndarray | None = None,
) -> _ComparedRows:
    """Return the rows with the outputs of the ONNX model beside those of the fitted model."""
    columns, answers, expected = list[str](), [np.zeros((len(base), 0))], [np.zeros((len(base), 0))]
    labels: np.ndarray | None = None
    for (name, values), fitted_values in zip(outputs.items(), fitted, strict=False):
        if fitted_values is None:
            continue
        if not is_float(values.dtype):
            differ = (_plain(values) != _plain(np.asarray(fitted_values))).any(axis=1)
            labels = differ if labels is None else labels | differ
            continue
        a, b = _matching(np.asarray(values, np.float64), np.asarray(fitted_values, np.float64), model)
        first = np.asarray(values).reshape(len(values), -1).shape[1] - a.shape[1]
        is_single = a.shape[1] + first == 1
        columns += [name] if is_single else [f"{name}[{first + i}]" for i in range(a.shape[1])]
        answers.append(a)
        expected.append(b)
    return _ComparedRows(
        kind,
        tuple(columns),
        np.concatenate(answers, axis=1),
        np.concatenate(expected, axis=1),
        labels,
        base,
        describe,
        np.zeros((len(base), 0), bool) if masked is None else masked,
    )


def _matching(answers: np.ndarray, expected: np.ndarray, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both as [K, C].

    A booster gives the probability of class 1 alone, its ONNX model those of both classes.
    """
    a, b = answers.reshape(len(answers), -1), expected.reshape(len(expected), -1)
    if a.shape[1] == 2 and b.shape[1] == 1:
        a = a[:, 1:]
    if a.shape != b.shape:
        raise UnsupportedModelError(
            f"{model}: its ONNX model returns the shape {list(answers.shape)}, but the model itself "
            f"returns {list(expected.shape)}. The converter does not support this kind of model. {ADVICE}."
        )
    return a, b


def _plain(labels: np.ndarray) -> np.ndarray:
    """Return labels [K, C] in a type that both sides share: float64 or text."""
    flat = labels.reshape(len(labels), -1)
    return flat.astype(np.float64 if flat.dtype.kind in "iufb" else str)


@dataclass(frozen=True)
class _Scale:
    """The range of each column [columns] of the fitted model's answers, and its largest number."""

    spans: np.ndarray
    largest: np.ndarray

    def exceeded(self, rows: _ComparedRows, limit: float) -> np.ndarray:
        """Return [M] whether an error exceeds both this share of the range and rounding."""
        errors = rows.errors
        exceeded = (_relative(errors, self.spans) > limit) & (errors > _ROUNDING * self.largest)
        return np.asarray(exceeded.any(axis=1))


def _scale(rows: Sequence[_ComparedRows], probabilities: Collection[str]) -> _Scale:
    """Return the range of the fitted model's answers; if all are equal, their size.

    Args:
        probabilities: outputs whose range is `_NARROW` at least.
    """
    expected = np.concatenate([batch.expected for batch in rows])
    columns = [column[np.isfinite(column)] for column in expected.T]
    largest = np.array([np.abs(c).max(initial=0) for c in columns])
    spans = np.array([np.ptp(c) if len(c) else 0 for c in columns])
    least = np.where(_belong(rows[0].columns, probabilities), _NARROW, 0)
    return _Scale(np.maximum(np.where(spans > 0, spans, largest), least), largest)


def _belong(columns: Sequence[str], outputs: Collection[str]) -> np.ndarray:
    """Return [columns] whether each belongs to one of the outputs."""
    return np.array([name in outputs or name.rpartition("[")[0] in outputs for name in columns], bool)


def _relative(errors: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return errors [M, columns] relative to a range; unchanged if it is 0, and 0 if it is infinite."""
    return np.where(np.isinf(spans), 0, errors) / np.where(spans > 0, spans, 1)


def _errors(
    rows: Sequence[_ComparedRows], scale: _Scale, probabilities: Collection[str]
) -> Iterator[RowErrors]:
    """Yield the largest error on each kind of row."""
    kinds: dict[tuple[RowKind, bool], list[tuple[_ComparedRows, np.ndarray]]] = {}
    closed = _belong(rows[0].columns, probabilities)
    for batch in rows:
        if len(batch) or batch is rows[0]:
            kinds.setdefault((batch.kind, batch.refused), []).append((batch, scale.spans))
        distance = np.where(closed, np.minimum(batch.expected, 1 - batch.expected), np.inf)
        distance = np.where((distance > 0) & (distance <= ENDS), distance, np.inf)
        near = np.asarray(np.isfinite(distance).any(axis=1))
        if near.any() and not batch.refused and batch.kind != "incomplete":
            kinds.setdefault(("near_bounds", False), []).append((batch.select(near), distance[near]))
    for (kind, refused), batches in kinds.items():
        yield _largest_error(kind, batches, scale, refused=refused)


def _largest_error(
    kind: RowKind, batches: Sequence[tuple[_ComparedRows, np.ndarray]], scale: _Scale, *, refused: bool
) -> RowErrors:
    """Return the error that is largest relative to a range.

    Args:
        batches: rows of this kind, and ranges [columns] or [M, columns].
    """
    labels = [batch.labels.sum() for batch, _ in batches if batch.labels is not None]
    shares = [_relative(batch.errors, spans) for batch, spans in batches]
    worst = max(range(len(batches)), key=lambda i: shares[i].max(initial=-1))
    (batch, spans), relative = batches[worst], shares[worst]
    place: dict[str, Any] = {}
    if relative.size:
        row, column = map(int, np.unravel_index(relative.argmax(), relative.shape))
        place = {
            "error": float(batch.errors[row, column]),
            "relative": float(relative[row, column]),
            "output_range": float(np.broadcast_to(spans, relative.shape)[row, column]),
            "output_largest": float(scale.largest[column]),
            "column": batch.columns[column],
            "row": int(batch.base[row]),
            "where": batch.describe(row),
        }
    return RowErrors(
        kind=kind,
        refused=refused,
        rows=sum(len(batch) for batch, _ in batches),
        labels=int(sum(labels)) if labels else None,
        **place,
    )


def _incomplete(feeds: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return [K] whether a row lacks a number."""
    incomplete = np.zeros(count, bool)
    for array in feeds.values():
        if is_float(array.dtype):
            incomplete |= np.isnan(array.reshape(count, -1)).any(axis=1)
    return incomplete


def _mixtures(runner: Runner, pair: ModelPair, model: str) -> list[_ComparedRows]:
    """Return answers to mixtures of two references; none if a row has one feature, or there is one row."""
    count, features, random = len(pair.rows), len(pair.rows.has_words), np.random.default_rng(0)
    if features < 2 or count < 2:
        return []
    mixtures = min(MIXTURES, max(_CELLS // features, 1))
    base = np.arange(mixtures) % count
    second = (base + random.integers(1, count, mixtures)) % count
    size = random.integers(1, features, mixtures)  # each number of features is equally likely
    is_second = random.random((mixtures, features)).argsort(axis=1) < size[:, None]
    rows = pair.rows.mixed(np.where(is_second, second[:, None], base[:, None]))

    def describe(i: int) -> str:
        return f"{_reference(base[i])} with {_named(pair, is_second[i])} of row {second[i]}"

    return [_compare_rows("mixtures", runner(pair.feed(rows)), pair.answer(rows), model, base, describe)]


@dataclass(frozen=True)
class _Questions:
    """Questions to both models about references that lack values, or have other categories.

    Attributes:
        limit: the error, as a share of a column's range, above which the entry refuses such rows.
        compared: compared rows. Each question adds some.
        takes_missing: flags by input: whether both models take a missing value. Each question adds some.
    """

    runner: Runner
    pair: ModelPair
    model: str
    scale: _Scale
    limit: float
    by_column: bool
    compared: list[_ComparedRows]
    takes_missing: dict[str, bool]

    def ask_without_numbers(self) -> dict[str, str]:
        """Compare answers to references without one number or several.

        Returns the features without which the fitted model answers nothing, and the input of each.
        """
        words = self.pair.rows.has_words
        features = [i for i in self._read() if not words[i]]
        if not features:
            return {}
        batches, unanswered = self._without_one(features)
        wrong = self._wrong(batches)
        removable = [f for f in features if f not in unanswered and f not in wrong]
        several = self._without_several(removable) if len(removable) > 1 else None
        if several is not None:
            batches.append(several)
            wrong |= self._wrong([several])
        by_input: dict[str, set[int]] = {}
        for feature in features:
            by_input.setdefault(self._input(feature), set()).add(feature)
        for name, members in by_input.items():
            self.takes_missing[name] = not (members & wrong or members <= set(unanswered))
        refused = np.array([not self.takes_missing.get(self._input(i), True) for i in range(len(words))])
        for batch in batches:
            is_refused = np.asarray(batch.masked[:, refused].any(axis=1))
            self.compared.append(batch.select(~is_refused))
            self.compared.append(replace(batch.select(is_refused), refused=True))
        return {self.pair.rows.column_name(f): self._input(f) for f in unanswered}

    def ask_categories(
        self, texts: Mapping[tuple[str, int], frozenset[str]]
    ) -> dict[str, tuple[Texts | None, ...]]:
        """Compare answers to each category, to others and to a missing one; return `Parity.texts`.

        Args:
            texts: the texts that the ONNX model tells apart, by input and column.
        """
        rows, rules = self.pair.rows, dict[str, list[Texts | None]]()
        for i in self._read():
            name, rule = self._input(i), None
            columns = rules.setdefault(name, [])
            if rows.has_words[i]:
                looked_up = texts.get((name, len(columns)))
                forms = [*rows.missing_texts(i), *([""] if looked_up and "" in looked_up else [])]
                may_miss = self._may_miss(i, forms)
                self.takes_missing[name] = self.takes_missing.get(name, False) or may_miss
                if looked_up is not None:
                    words = sorted(looked_up - {""})
                    rule = self._rule(
                        i, words, _unseen({*words, *map(str, rows.columns[i])}), may_miss=may_miss
                    )
            elif numbers := sorted(self.pair.numbers.get(i, ())):
                between = next(n + 1 for n in numbers if n + 1 not in numbers)
                outside = (numbers[0] - 1, between, numbers[-1] + 1)
                rule = self._rule(i, numbers, outside, may_miss=True)
            columns.append(rule)
        return {name: tuple(columns) for name, columns in rules.items() if any(columns)}

    def _rule(
        self, i: int, categories: Sequence[str | float], unseen: Sequence[str | float], *, may_miss: bool
    ) -> Texts:
        """Return the models' treatment of the categories of feature i and of some other values."""
        batches = self._with_each(i, categories)
        self.compared.extend(batch for batch in batches if batch is not None)
        accepted = [value for value, batch in zip(categories, batches, strict=True) if batch is not None]
        answers = [self._with_any("unknown_categories", i, [value]) for value in unseen]
        is_refused = any(batch is None or batch.refused for batch in answers)
        if None not in answers:
            self.compared.extend(
                batch for batch in answers if batch is not None and batch.refused == is_refused
            )
        return Texts(
            known=tuple(value if isinstance(value, str) else in_digits(value) for value in accepted),
            others="refused" if is_refused else "unknown",
            missing=may_miss,
        )

    def _may_miss(self, i: int, forms: Sequence[Any]) -> bool:
        """Tell whether both models take a missing text in feature i, in one of its forms."""
        batch = self._with_any("masked", i, forms)
        if batch is not None:
            self.compared.append(batch)
        return batch is not None and not batch.refused

    def _with_any(self, kind: RowKind, i: int, values: Sequence[Any]) -> _ComparedRows | None:
        """Return answers with the first of these values in feature i that both models answer alike.

        Return None if the fitted model refuses all of them, and rows that the entry refuses if the models
        differ on each.
        """
        worst = None
        for value in values:
            batch = self._with_values(kind, i, [value] * min(len(self.pair.rows), _TEXTS))
            if batch is None:
                continue
            if not self.scale.exceeded(batch, self.limit).any():
                return batch
            worst = worst or replace(batch, refused=True)
        return worst

    def _with_each(self, i: int, values: Sequence[str | float]) -> list[_ComparedRows | None]:
        """Return answers with each value in feature i; None for one that the fitted model refuses."""
        if not values:
            return []
        each = max(_TEXTS // len(values), 1)
        rows = self._with_values("categories", i, np.tile(np.array(values, object), each).tolist())
        if rows is not None:
            return [rows.select(np.arange(len(rows)) % len(values) == k) for k in range(len(values))]
        if len(values) == 1:
            return [None]
        half = len(values) // 2
        return [*self._with_each(i, values[:half]), *self._with_each(i, values[half:])]

    def _with_values(self, kind: RowKind, i: int, values: Sequence[Any]) -> _ComparedRows | None:
        """Return answers to references with these values in feature i; None if the fitted model refuses."""
        rows, base = self.pair.rows, np.arange(len(values)) % len(self.pair.rows)
        changed = rows.mixed(np.repeat(base[:, None], len(rows.columns), axis=1)).with_column(i, values)
        return self._answers(
            kind,
            changed,
            base,
            lambda k: f"{_reference(base[k])} with {rows.column_name(i)!r} of {values[k]!r}",
            np.zeros((len(values), len(rows.columns)), bool),
        )

    def _read(self) -> list[int]:
        """Return the features that the ONNX model reads."""
        inputs = frozenset(self.pair.feed(self.pair.rows))
        return [i for i in range(len(self.pair.rows.has_words)) if self._input(i) in inputs]

    def _input(self, feature: int) -> str:
        return self.pair.rows.column_name(feature) if self.by_column else INPUT

    def _without_one(self, features: Sequence[int]) -> tuple[list[_ComparedRows], tuple[int, ...]]:
        """Return answers to rows without one value, and features that the fitted model cannot do without.

        Features that one step of the model reads are tested together: it takes a missing value in all of
        them or in none. If it refuses some, halves are tested, as often as `_QUESTIONS` allows.
        """
        each = max(min(MASKED, _CELLS // len(features)) // len(features), 1)
        batches, unanswered = list[_ComparedRows](), list[int]()
        groups = [[f for f in group if f in features] for group in self.pair.feature_groups]
        singles = [f for f in features if not any(f in group for group in groups)]
        pending = [group for group in (*groups, singles) if group]
        questions = _QUESTIONS // len(features)
        most, count = max(len(pending), questions), 0
        while pending:
            group = pending.pop(0)
            batch = self._without(self._masks(group, each)) if count < most else None
            half = len(group) // 2
            if batch is not None:
                batches.append(batch)
            elif half and count < questions:
                pending += [group[:half], group[half:]]
            else:
                unanswered += group
            count += 1
        return batches, tuple(sorted(unanswered))

    def _masks(self, features: Sequence[int], each: int) -> np.ndarray:
        """Return masks [M, F] that each mark one feature, or several if there are many features."""
        width = len(self.pair.rows.has_words)
        rows = min(len(features), max(_CELLS // width, 1))
        masks = np.zeros((rows, each, width), bool)
        masks[np.arange(len(features)) % rows, :, features] = True
        return masks.reshape(-1, width)

    def _without_several(self, features: Sequence[int]) -> _ComparedRows | None:
        random = np.random.default_rng(1)
        count = max(min(MASKED, _CELLS // len(features)) // 5, 1)
        size = random.integers(2, len(features) + 1, count)
        masks = np.zeros((count, len(self.pair.rows.has_words)), bool)
        masks[:, features] = random.random((count, len(features))).argsort(axis=1) < size[:, None]
        return self._without(masks)

    def _without(self, masks: np.ndarray) -> _ComparedRows | None:
        """Return answers to masked rows; None if the fitted model refuses such rows."""
        base = np.arange(len(masks)) % len(self.pair.rows)
        rows = self.pair.rows.mixed(np.repeat(base[:, None], masks.shape[1], axis=1)).masked(masks)
        return self._answers(
            "masked",
            rows,
            base,
            lambda k: f"{_reference(base[k])} without {_named(self.pair, masks[k])}",
            masks,
        )

    def _answers(
        self, kind: RowKind, rows: Rows, base: np.ndarray, describe: Callable[[int], str], masks: np.ndarray
    ) -> _ComparedRows | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = self.pair.answer(rows)
        except Exception:  # each library refuses rows by errors of its own kind
            return None
        outputs = self.runner(self.pair.feed(rows))
        return _compare_rows(kind, outputs, fitted, self.model, base, describe, masks)

    def _wrong(self, batches: Sequence[_ComparedRows]) -> set[int]:
        """Return the features without which the models differ by more than is allowed."""
        masks = [batch.masked[self.scale.exceeded(batch, self.limit)].any(axis=0) for batch in batches]
        return {int(feature) for mask in masks for feature in np.flatnonzero(mask)}


def _reference(row: int) -> str:
    return f"row {row} of the references"


def _unseen(texts: Collection[str]) -> list[str]:
    """Return unknown texts: one before, one among and one behind the known ones in the alphabet.

    XGBoost takes some that lie between two categories, and refuses others.
    """
    text = "no such text"
    while any(text in each for each in texts):
        text += "_"
    return ["!" + text, text, "~" + text]


def _named(pair: ModelPair, features: np.ndarray) -> str:
    return quoted([pair.rows.column_name(int(i)) for i in np.flatnonzero(features)])
