"""Which entry answers which question."""

from dataclasses import replace
from pathlib import Path

import pytest

from rationale_service.errors import (
    BrokenExplanationError,
    NotExplainableError,
    UnknownModelError,
    UnknownResourceError,
)
from rationale_service.repository.entry import read_entry
from rationale_service.repository.registry import COMPILED, ModelRegistry, Unserved, read_repository


@pytest.fixture(scope="module")
def plain(repository: Path) -> ModelRegistry:
    return read_repository(repository)


@pytest.fixture(scope="module")
def registry(plain: ModelRegistry) -> ModelRegistry:
    """With two explainers of `score`, of which `fast` is the default."""
    explain_entry = replace(plain.entries["score_explain"], name="score_explain_0123456789abcdef")
    other = replace(explain_entry, name="score_explain_fedcba9876543210")
    return replace(
        plain,
        entries={**plain.entries, explain_entry.name: explain_entry, other.name: other},
        explainers={"score": {"fast": explain_entry, "slow": other}},
        defaults={"score": explain_entry},
    )


def test_the_default_answers_under_the_name_of_the_explain_entry(registry: ModelRegistry) -> None:
    fast = registry.explainers["score"]["fast"]
    assert registry.explainer("score") is fast
    assert registry.explainer("score", "1") is fast
    assert registry.entry("score_explain") is fast
    assert registry.explainer("score_explain") is fast
    assert registry.entry("score").manifest is None


def test_the_compiled_entry_decides_whatever_the_default_is(
    plain: ModelRegistry, registry: ModelRegistry
) -> None:
    compiled = plain.entries["score_explain"]
    for name in ("score", "score_explain", "score_explain_fedcba9876543210"):
        assert registry.decider(name) is compiled
    for name in ("slope", "typed"):
        with pytest.raises(NotExplainableError, match=rf"'{name}' .*--decision"):
            registry.decider(name)
    with pytest.raises(UnknownModelError):
        registry.decider("absent")
    broken = Unserved("damaged", ())
    with pytest.raises(BrokenExplanationError, match="'score_explain'"):
        replace(plain.without({"score_explain"}), unserved={"score_explain": broken}).decider("score")


def test_each_is_reached_by_name(plain: ModelRegistry, registry: ModelRegistry) -> None:
    slow = registry.explainers["score"]["slow"]
    assert registry.explainer("score", explainer="slow") is slow
    assert registry.explainer("score_explain", explainer="slow") is slow
    assert registry.entry(slow.name) is slow
    assert registry.explainer("score", explainer=COMPILED) is plain.entries["score_explain"]
    assert plain.explainer("score", explainer=COMPILED) is plain.entries["score_explain"]


def test_what_is_not_there(plain: ModelRegistry, registry: ModelRegistry) -> None:
    with pytest.raises(UnknownResourceError, match=r"'none'.* 'fast', 'slow'"):
        registry.explainer("score", explainer="none")
    with pytest.raises(UnknownResourceError, match="it has: none"):
        plain.explainer("typed", explainer="fast")
    with pytest.raises(NotExplainableError, match="PUT /v2/models/typed/explainers"):
        registry.explainer("typed")
    with pytest.raises(UnknownModelError):
        registry.explainer("absent", explainer="fast")
    with pytest.raises(UnknownModelError, match="no version '2'"):
        registry.explainer("score", "2", "fast")


def test_explain_entries_belong_to_their_model(
    registry: ModelRegistry, tmp_path: Path, repository: Path
) -> None:
    own_entries = [name for name, entry in registry.entries.items() if not registry.explains_another(entry)]
    assert "score" in own_entries
    assert not [name for name in own_entries if name.startswith("score_explain")]
    (tmp_path / "score_explain").symlink_to(repository / "score_explain")
    alone = ModelRegistry(tmp_path, {"score_explain": read_entry(tmp_path / "score_explain")})
    assert not alone.explains_another(alone.entries["score_explain"])
