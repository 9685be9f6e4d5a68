"""scikit-learn's vectorisers: words of a text, counted as scikit-learn counts them."""

import copy
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from skl2onnx.common._apply_operation import apply_identity
from skl2onnx.common._registration import get_converter
from skl2onnx.common.data_types import DoubleTensorType, guess_numpy_type
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

from rationale.conversion.sklearn.operators import Ops
from rationale.errors import InvalidReferencesError
from rationale.schema.locales import EVERYWHERE
from rationale.tables.frames import frame_of

_WORD, _DIGIT, _SPACE = r"\p{L}\p{N}_", r"\p{Nd}", r"\s\v\x1c-\x1f\x85\p{Z}"  # as Python means \w, \d and \s
_CLASSES = {r"\w": _WORD, r"\d": _DIGIT, r"\s": _SPACE}
_NEGATED = {r"\W": _WORD, r"\D": _DIGIT, r"\S": _SPACE}
_WHOLE_WORDS = re.compile(r"\\b((?:\\w)*)\\w\+\\b")  # "\b" on both sides says what a longest match is anyway
_TOKEN = re.compile(r"\\.|\[\^?|.", re.DOTALL)
_BEYOND = frozenset("(|^$.")  # tokens that RE2 may match otherwise, also shortest matches
_weights = get_converter("SklearnTfidfTransformer")
_LAZY = re.compile(r"(?<!\\)[*+?}][?+]")


def reads_text(model: Any, estimators: Iterable[Any]) -> bool:
    """Tell whether a model's row is one text: it knows no columns, and counts words.

    Args:
        parts: the estimators inside the model.
    """
    has_columns = hasattr(model, "n_features_in_") or hasattr(model, "feature_names_in_")
    return not has_columns and any(
        isinstance(estimator, CountVectorizer | HashingVectorizer) for estimator in estimators
    )


def as_column(example: Any) -> Any:
    """Return texts as a table of one column: a list, a 1-D array, a Series, or a table of one.

    Raises:
        InvalidReferencesError: if there are several columns.
    """
    frame = frame_of(example)
    width = frame.shape[1] if frame is not None else 1 if np.ndim(example) < 2 else np.shape(example)[1]
    if width != 1:
        raise InvalidReferencesError(
            f"the model reads one text per row, but the references have {width} columns. Give only the "
            "texts: frame['text'] or a list."
        )
    return np.asarray(example)[:, None] if frame is None and np.ndim(example) == 1 else frame or example


def vectoriser_refusal(step: CountVectorizer) -> str | None:
    """Return the reason for refusing a vectoriser, with advice; None if it is accepted."""
    if callable(step.analyzer) or step.tokenizer is not None or step.preprocessor is not None:
        return (
            " with your own function, which a graph cannot contain. Use token_pattern instead, or apply "
            "the function before the pipeline."
        )
    if step.analyzer != "word":
        return (
            f"(analyzer={step.analyzer!r}): it joins white space, which no operator does. Fit it with "
            "analyzer='word'; token_pattern=r'\\w' has a word for each character."
        )
    if step.strip_accents is not None or step.input != "content":
        return "(strip_accents=…, input=…): no operator strips accents or reads files. Do so in front of it."
    stopped = frozenset(step.get_stop_words() or ())
    if stopped and (step.ngram_range[1] > 1 or not stopped.isdisjoint(step.vocabulary_)):
        return (
            "(stop_words=…) of several words in a row, or of a vocabulary that holds them: no operator takes "
            "words out from between others. Fit it with ngram_range=(1, 1), or with max_df in place of "
            "stop_words."
        )
    if _expression(step.token_pattern) is None or (step.ngram_range[1] > 1 and _joins(step.token_pattern)):
        return (
            f"(token_pattern={step.token_pattern!r}): ONNX Runtime splits texts with RE2, which may split "
            "them differently. Fit it with character classes and repetitions, such as r'\\w+', "
            f"r'[a-z]{{3,}}' or the default."
        )
    return None


def counts(scope: Any, operator: Any, container: Any) -> None:
    """Count words, and sequences of words, in texts."""
    step = operator.raw_operator
    grams = _grams(step)
    words = {word for gram, _ in grams for word in gram}
    pad = next(mark for n in range(1, len(words) + 2) if (mark := "#" * n) not in words)
    lower: dict[str, Any] = {"case_change_action": "LOWER", "is_case_sensitive": 1, "locale": EVERYWHERE}
    split: dict[str, Any] = {
        "tokenexp": _expression(step.token_pattern),
        "pad_value": pad,
        "mark": 0,
        "mincharnum": 1,
    }

    def add(
        kind: str, x: str, *inputs: str, to: str | None = None, domain: str = "", **attributes: Any
    ) -> str:
        output = to or scope.get_unique_variable_name(kind.lower())
        name = scope.get_unique_operator_name(kind)
        container.add_node(kind, [x, *inputs], output, op_domain=domain, name=name, **attributes)
        return str(output)

    flat = scope.get_unique_variable_name("flat")
    container.add_initializer(flat, onnx.TensorProto.INT64, [1], [-1])
    x = add("Reshape", operator.inputs[0].full_name, flat)
    x = add("StringNormalizer", x, **lower) if step.lowercase else x
    x = add("Tokenizer", x, domain="com.microsoft", **split)
    result, end = operator.outputs[0], operator.outputs[0].full_name
    double = isinstance(result.type, DoubleTensorType)
    x = add("TfIdfVectorizer", x, to=None if double else end, **_pool(step, grams))
    if double:
        add("Cast", x, to=end)


def weights(scope: Any, operator: Any, container: Any) -> None:
    """Weigh counts as skl2onnx does, but with 1 + log n for a count n: skl2onnx writes log(1 + n)."""
    step, (counted,), (result,) = operator.raw_operator, operator.inputs, operator.outputs
    if not step.sublinear_tf:
        _weights(scope, operator, container)
        return
    ops, kind = Ops(container), guess_numpy_type(counted.type)
    x, zeros, ones = counted.full_name, np.zeros(1, kind), np.ones(1, kind)
    logs = scope.declare_local_variable("logs", type(counted.type)([None, counted.type.shape[1]]))
    more = ops.Add(ops.Log(x), ones)
    none = ops.Equal(x, zeros)
    ops.Where(none, zeros, more, output_names=[logs.full_name]).add_to(scope, container)
    plain_step = copy.copy(step)
    plain_step.sublinear_tf = False
    inner = scope.declare_local_operator("SklearnTfidfTransformer", plain_step)
    inner.inputs.append(logs)
    inner.outputs.append(scope.declare_local_variable("weighted", type(result.type)()))
    apply_identity(scope, inner.outputs[0].full_name, result.full_name, container)


def _grams(step: CountVectorizer) -> list[tuple[tuple[str, ...], int]]:
    """Return the counted sequences of words, each with its column: the shortest first."""
    least, most = step.ngram_range
    grams = list[tuple[tuple[str, ...], int]]()
    for term, column in step.vocabulary_.items():
        gram = tuple(term.split(" ")) if most > 1 else (term,)
        if not least <= len(gram) <= most:  # a word of the user's own vocabulary that never occurs
            gram = (f" {term}", *[""] * (least - 1))
        grams.append((gram, int(column)))
    return sorted(grams, key=lambda entry: (len(entry[0]), entry))


def _pool(step: CountVectorizer, grams: list[tuple[tuple[str, ...], int]]) -> dict[str, Any]:
    """Return the attributes of a TfIdfVectorizer, with the start of each length's sequences."""
    least, most = step.ngram_range
    starts = [sum(len(gram) for gram, _ in grams if len(gram) < n) for n in range(1, most + 1)]
    return {
        "mode": "IDF" if step.binary else "TF",  # without weights: 1 at most, or the count
        "min_gram_length": least,
        "max_gram_length": most,
        "max_skip_count": 0,
        "pool_strings": [word for gram, _ in grams for word in gram],
        "ngram_counts": starts,
        "ngram_indexes": [column for _, column in grams],
    }


def _joins(pattern: str) -> bool:
    """Tell whether a word may hold a space, at which a term of several words is split."""
    return any(" " in word for word in re.findall(pattern, " a  b 1 _ . "))


def _expression(pattern: str) -> str | None:
    """Return Python's pattern in a form in which RE2 splits the same words; None if it may split others.

    Only a row of character classes with repetitions passes: RE2's longest match is then Python's.
    """
    pattern = _WHOLE_WORDS.sub(r"\1\\w+", pattern.removeprefix("(?u)"))
    if _LAZY.search(pattern) or re.match(pattern, ""):
        return None
    expression, inside = "", False
    for piece in _TOKEN.findall(pattern):
        if inside:
            if piece in _NEGATED or piece.startswith("[") or piece in (r"\b", r"\B"):
                return None
            inside = piece != "]"
            expression += _CLASSES.get(piece, piece)
        elif piece in _CLASSES or piece in _NEGATED:
            expression += f"[{_CLASSES[piece]}]" if piece in _CLASSES else f"[^{_NEGATED[piece]}]"
        elif piece in _BEYOND or re.fullmatch(r"\\[A-Za-z0-9]", piece):
            return None
        else:
            inside = piece.startswith("[")
            expression += piece
    return expression
