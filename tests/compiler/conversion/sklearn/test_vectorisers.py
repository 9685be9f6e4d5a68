"""Models of texts: every form in which users give them, and every text as scikit-learn reads it."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler

from rationale import (
    Auto,
    Compiled,
    ExactShap,
    InvalidReferencesError,
    UnsupportedModelError,
    compile_model,
    convert,
)

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = (
    "Loan loan PAID late a I 2 x1 early naïve Été été ÉTÉ Straße 日本語 Ж ж_ж don't e-mail # 3.5 the".split()
)
_RANDOM = np.random.default_rng(0)


def written(count: int, seed: int) -> list[str]:
    """Return texts of words, with what stands between words in letters and files."""
    random = np.random.default_rng(seed)
    between = [" ", ", ", "  ", "\n", " - ", ".\t", "!"]
    rows = [random.choice(WORDS, random.integers(1, 9)) for _ in range(count)]
    return ["".join(f"{w}{random.choice(between)}" for w in row) for row in rows]


TEXTS = written(120, 0)
Y = np.array([int("late" in text) ^ int("PAID" in text) for text in TEXTS])
NEW = [*written(200, 1), "", " ", "nothing that is known", "a", "#", "LATE late Late", "ÉTÉ"]
AMOUNTS = pd.DataFrame({"text": TEXTS, "amount": _RANDOM.normal(size=120)})


def split(pattern: str) -> dict[str, str]:
    return {"token_pattern": pattern}


VECTORISERS = {
    "default": TfidfVectorizer(),
    "counts": CountVectorizer(),
    "seen or not": CountVectorizer(binary=True),
    "as written": TfidfVectorizer(lowercase=False),
    "each character": TfidfVectorizer(**split(r"(?u)\b\w+\b")),
    "letters": TfidfVectorizer(**split(r"[a-zA-Z]+")),
    "no digits": CountVectorizer(**split(r"[^\s\d]{2,}")),
    "by white space": CountVectorizer(**split(r"\S+")),
    "two in a row": TfidfVectorizer(ngram_range=(1, 2)),
    "pairs alone": CountVectorizer(ngram_range=(2, 2), binary=True),
    "up to three": TfidfVectorizer(ngram_range=(1, 3), max_features=60),
    "few": TfidfVectorizer(min_df=3, max_df=0.8, max_features=9),
    "stop words": TfidfVectorizer(stop_words=["the", "loan"]),
    "logarithms": TfidfVectorizer(sublinear_tf=True),
    "no norm": TfidfVectorizer(norm=None, smooth_idf=False),
    "logarithms alone": TfidfVectorizer(sublinear_tf=True, use_idf=False, norm=None),
    "sums of one": TfidfVectorizer(norm="l1", use_idf=False),
    "own words": CountVectorizer(
        vocabulary=["late", "paid late", "paid", "zzz", "a b c d"], ngram_range=(1, 2)
    ),
}


def explained(model: Any) -> Compiled:
    return compile_model(convert(model, TEXTS), ExactShap(TEXTS[:7]))


@pytest.mark.parametrize("name", VECTORISERS)
def test_every_text_is_read_as_scikit_learn_reads_it(name: str) -> None:
    model = make_pipeline(VECTORISERS[name], LogisticRegression(C=20)).fit(TEXTS, Y)
    compiled = explained(model)
    together = compiled.explain(NEW)["probabilities"]
    np.testing.assert_allclose(together, model.predict_proba(NEW), rtol=0, atol=1e-5)
    one_by_one = np.concatenate([compiled.explain([text])["probabilities"] for text in NEW[-7:]])
    np.testing.assert_allclose(one_by_one, model.predict_proba(NEW[-7:]), rtol=0, atol=1e-5)


FORMS = {
    "list": TEXTS,
    "tuple": tuple(TEXTS),
    "array": np.array(TEXTS),
    "objects": np.array(TEXTS, object),
    "series": pd.Series(TEXTS, index=range(5, 125)),
    "named series": pd.Series(TEXTS, name="text", dtype="string"),
    "arrow": pa.array(TEXTS),
    "column": np.array(TEXTS)[:, None],
    "frame": pd.DataFrame({"text": TEXTS}),
}


@pytest.mark.parametrize("method", [ExactShap, Auto])
@pytest.mark.parametrize("form", FORMS)
def test_texts_come_in_every_form(form: str, method: Any) -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y)
    texts = FORMS[form]
    compiled = compile_model(model, method(texts))
    assert compiled.manifest.parity.relative < 1e-5
    answer = compiled.explain(texts)
    expected = model.predict_proba(TEXTS)
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        answer["x_attributions"].reshape(-1), expected[:, 1] - expected[:, 1].mean(), rtol=0, atol=1e-5
    )


MODELS = {
    "search": GridSearchCV(
        make_pipeline(CountVectorizer(), MultinomialNB()), {"multinomialnb__alpha": [1, 2]}
    ),
    "calibration": make_pipeline(TfidfVectorizer(), CalibratedClassifierCV(LogisticRegression())),
    "union": make_pipeline(
        make_union(CountVectorizer(), TfidfVectorizer(ngram_range=(2, 2))), LogisticRegression()
    ),
    "forest": make_pipeline(CountVectorizer(), RandomForestClassifier(5, random_state=0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_read_texts(name: str) -> None:
    model = MODELS[name].fit(TEXTS, Y)
    answer = explained(model).explain(NEW)["probabilities"]
    np.testing.assert_allclose(answer, model.predict_proba(NEW), rtol=0, atol=1e-5)


def test_a_number_for_a_text() -> None:
    model = make_pipeline(TfidfVectorizer(), Ridge()).fit(TEXTS, Y)
    answer = compile_model(model, ExactShap(TEXTS[:9])).explain(NEW)["variable"][:, 0]
    np.testing.assert_allclose(answer, model.predict(NEW), rtol=0, atol=1e-5)


def test_texts_need_no_rows_to_convert() -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y)
    compiled = compile_model(convert(model), ExactShap(TEXTS))
    np.testing.assert_allclose(compiled.explain(NEW)["probabilities"], model.predict_proba(NEW), atol=1e-5)


@pytest.mark.parametrize("norm", ["l2", None])
@pytest.mark.parametrize("beside", [True, False])
def test_a_vectoriser_of_a_column(norm: str | None, beside: bool) -> None:
    numbers = [("numbers", StandardScaler(), ["amount"])] if beside else []
    table = AMOUNTS if beside else AMOUNTS[["text"]]
    columns = ColumnTransformer([("words", TfidfVectorizer(norm=norm), "text"), *numbers])
    model = make_pipeline(columns, LogisticRegression()).fit(table, Y)
    compiled = compile_model(model, ExactShap(table[:20]))
    answer = compiled.explain(table)
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(table), rtol=0, atol=1e-5)
    as_lists = compiled.explain({name: list(table[name]) for name in table})
    np.testing.assert_array_equal(as_lists["probabilities"], answer["probabilities"])


REFUSED: dict[str, tuple[Any, str]] = {
    "characters": (TfidfVectorizer(analyzer="char"), r"analyzer='char'.*analyzer='word'"),
    "parts of words": (TfidfVectorizer(analyzer="char_wb"), r"analyzer='char_wb'.*analyzer='word'"),
    "a function": (CountVectorizer(tokenizer=str.split), "function.*token_pattern"),
    "accents": (CountVectorizer(strip_accents="unicode"), "strip_accents"),
    "stop words between": (
        TfidfVectorizer(stop_words="english", ngram_range=(1, 2)),
        r"stop_words=.*max_df",
    ),
    "edges of words": (CountVectorizer(**split(r"\b[a-z]{2,}\b")), "RE2"),
    "a choice": (CountVectorizer(**split(r"(?:late|paid)\w*")), "RE2"),
    "the shortest": (CountVectorizer(**split(r"[a-z]+?e")), "RE2"),
    "words with spaces": (CountVectorizer(**split(r"[a-z ]+"), ngram_range=(1, 2)), "RE2"),
    "hashes": (HashingVectorizer(n_features=16), "TfidfVectorizer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_vectoriser_that_no_graph_repeats_is_refused_by_name(name: str) -> None:
    step, why = REFUSED[name]
    model = make_pipeline(step, LogisticRegression()).fit(TEXTS, Y)
    with pytest.raises(UnsupportedModelError, match=rf"sklearn\.{type(step).__name__}.*{why}"):
        convert(model, TEXTS)


def test_several_columns_for_one_text() -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y)
    with pytest.raises(InvalidReferencesError, match=r"one text .*2 columns.*frame\['text'\]"):
        convert(model, AMOUNTS)


def test_what_the_fitted_model_raises_is_no_fault_of_the_converter() -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y)
    with pytest.raises(InvalidReferencesError, match="predict") as refused:
        convert(model, np.arange(9.0))
    assert "skl2onnx" not in str(refused.value)
    assert re.search("AttributeError: .*lower", str(refused.value))


def test_what_converts_for_numbers_alone_is_told_where_the_vectoriser_goes() -> None:
    model = CalibratedClassifierCV(make_pipeline(TfidfVectorizer(), LogisticRegression())).fit(TEXTS, Y)
    advice = r"make_pipeline\(TfidfVectorizer\(\), CalibratedClassifierCV\("
    with pytest.raises(UnsupportedModelError, match=advice):
        convert(model, TEXTS)
