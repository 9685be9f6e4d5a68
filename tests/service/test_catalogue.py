"""Which entry answers which question."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.catalogue import COMPILED, Catalogue, read_repository
from service.entries import read_entry
from service.errors import NotExplainableError, UnknownModelError, UnknownResourceError


@pytest.fixture(scope="module")
def plain(repository: Path) -> Catalogue:
    return read_repository(repository)


@pytest.fixture(scope="module")
def catalogue(plain: Catalogue) -> Catalogue:
    """With two explainers of `score`, of which `fast` is the default."""
    made = replace(plain.entries["score_explain"], name="score_explain_0123456789abcdef")
    other = replace(made, name="score_explain_fedcba9876543210")
    return replace(
        plain,
        entries={**plain.entries, made.name: made, other.name: other},
        explainers={"score": {"fast": made, "slow": other}},
        defaults={"score": made},
    )


def test_the_default_answers_under_the_name_of_the_explain_entry(catalogue: Catalogue) -> None:
    fast = catalogue.explainers["score"]["fast"]
    assert catalogue.explainer("score") is fast
    assert catalogue.explainer("score", "1") is fast
    assert catalogue.entry("score_explain") is fast
    assert catalogue.explainer("score_explain") is fast
    assert catalogue.entry("score").manifest is None


def test_each_is_reached_by_name(plain: Catalogue, catalogue: Catalogue) -> None:
    slow = catalogue.explainers["score"]["slow"]
    assert catalogue.explainer("score", explainer="slow") is slow
    assert catalogue.explainer("score_explain", explainer="slow") is slow
    assert catalogue.entry(slow.name) is slow
    assert catalogue.explainer("score", explainer=COMPILED) is plain.entries["score_explain"]
    assert plain.explainer("score", explainer=COMPILED) is plain.entries["score_explain"]


def test_what_is_not_there(plain: Catalogue, catalogue: Catalogue) -> None:
    with pytest.raises(UnknownResourceError, match=r"no explainer 'none' .* fast, slow, compiled"):
        catalogue.explainer("score", explainer="none")
    with pytest.raises(UnknownResourceError, match="it has: none"):
        plain.explainer("typed", explainer="fast")
    with pytest.raises(NotExplainableError, match="PUT /v2/models/typed/explainers"):
        catalogue.explainer("typed")
    with pytest.raises(UnknownModelError):
        catalogue.explainer("absent", explainer="fast")
    with pytest.raises(UnknownModelError, match="no version '2'"):
        catalogue.explainer("score", "2", "fast")


def test_explain_entries_belong_to_their_model(
    catalogue: Catalogue, tmp_path: Path, repository: Path
) -> None:
    own = [name for name, entry in catalogue.entries.items() if not catalogue.explains_another(entry)]
    assert "score" in own
    assert not [name for name in own if name.startswith("score_explain")]
    (tmp_path / "score_explain").symlink_to(repository / "score_explain")
    alone = Catalogue(tmp_path, {"score_explain": read_entry(tmp_path / "score_explain")})
    assert not alone.explains_another(alone.entries["score_explain"])
