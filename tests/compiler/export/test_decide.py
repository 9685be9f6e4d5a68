"""The page decides in JavaScript: held to the compiler's own decisions on drawn rows, in node."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale.decisions.decide import NoReasonsError, decide
from rationale.decisions.rows import ExplainedRow, decision_scores, logit
from rationale.export.page import FILES, bundle_modules
from rationale.pictures.browser import FILES as SHARED
from rationale.schema.manifest import EmbeddedProfile
from rationale.schema.profile import as_profile
from tests.needs import need

ROWS = 400
SCRIPT = """
import { readFileSync } from "node:fs";
const { decide } = await import(process.argv[1]);
const { decided, rows } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(rows.map(({ row, values }) => decide(decided, row, values))));
"""
PROFILE: dict[str, Any] = {
    "output": "p",
    "threshold": 0.2,
    "max_reasons": 2,
    "least_share": 0.1,
    "tolerance": 0.01,
    "features": {
        "income": {"title": "Income", "reason": "R1", "least": 0},
        "debt": {"reason": "R1"},
        "late": {"reason": "R2"},
        "inquiries": {"reason": "R4", "most": 9},
        "constructor": {"title": "Kind", "categories": {"a": "A", "b": "B"}},
        "flag": {"type": "flag", "categories": {"0": "no", "1": "yes"}, "reason": "R5"},
    },
    "groups": {"housing": {"members": ["own", "rent"], "title": "Housing", "reason": "R3"}},
    "reasons": {
        "R4": {"text": "Inquiries", "inquiry": True},
        "R1": {
            "text": "Income",
            "missing": "No income given",
            "when": [{"below": 2, "text": "Low income"}, {"equals": 5, "text": "Five"}],
        },
        "R2": {"text": "Late payments", "when": [{"above": 1, "below": 3, "text": "Two late payments"}]},
        "R3": {"text": "Housing", "missing": "Housing not stated"},
        "R5": {"text": "Flag", "when": [{"equals": True, "text": "Flagged"}]},
        "R9": "Bankrupt",
    },
    "knock_outs": [
        {"feature": "bankruptcies", "above": 0, "reason": "R9"},
        {"feature": "late", "above": 4, "reason": "R2"},
        {"feature": "status", "equals": "x", "reason": "R9"},
        {"feature": "flagged", "equals": True, "reason": "R5"},
    ],
}


def by_language(rules: Any) -> Any:
    """Return the rules of features, groups or reasons with each text in two languages."""
    if isinstance(rules, str):
        return {"de": f"{rules} auf Deutsch", "en": rules}
    if isinstance(rules, list):
        return [by_language(each) for each in rules]
    kept = ("reason", "members", "type")
    return {
        key: by_language(each) if isinstance(each, str | list | dict) and key not in kept else each
        for key, each in rules.items()
    }


GERMAN = {
    "adverse": "above",
    "languages": ["de", "en"],
    **{key: by_language(PROFILE[key]) for key in ("features", "groups", "reasons")},
}
KEYS = ("income", "debt", "late", "inquiries", "constructor", "flag", "housing")


def drawn(random: np.random.Generator) -> tuple[ExplainedRow, dict[str, Any]]:
    """Draw a row of few different numbers, so that it meets thresholds, ties and ends of ranges."""

    def item(*of: Any) -> Any:
        return of[random.integers(len(of))]

    values = {name: item(None, 0.0, 1.0, 2.0, 5.0, 7.0) for name in ("income", "debt", "late", "own", "rent")}
    values |= {
        "inquiries": item(1.0, 9.0, 9.5),
        "constructor": item("a", "a", "b", "c"),
        "flag": item(0.0, 1.0, 2.0),
    }
    values |= {
        "bankruptcies": item(None, 0, 0, 1),
        "status": item(None, "y", "x"),
        "flagged": item(None, False, True),
    }
    amounts = {key: float(item(-0.1, 0.0, 0.01, 0.02, 0.05, 0.05 * (1 + 1e-8), 0.3)) for key in KEYS}
    score, gap = (
        float(item(0.1, 0.15, 0.2, 0.21, 0.25, 0.9, np.nan)),
        item(None, 0.0, 0.009, -0.009, 0.011, -0.011),
    )
    return ExplainedRow(score, score, 0.1, amounts, None, gap), values


@pytest.mark.parametrize(
    "change",
    [
        {"adverse": "above"},
        {"adverse": "below", "refer": [0.15, 0.25], "outside": "warn"},
        {"adverse": "above", "knock_outs": [], "outside": "warn", "max_reasons": 4, "least_share": 0.0},
        {"adverse": "below", "knock_outs": [], "outside": "warn", "max_reasons": 1},
        {"adverse": "above", "knock_outs": [], "outside": "warn", "least_share": 0.25},
        GERMAN,
    ],
    ids=["above", "below", "many reasons", "one reason", "a share at the limit", "of two languages"],
)
def test_as_the_compiler_decides(change: dict[str, Any], tmp_path: Path) -> None:
    profile = as_profile({**PROFILE, **change})
    decided = EmbeddedProfile(profile=profile, digest=profile.digest, output_range=(0, 1), tolerance=0.01)
    random = np.random.default_rng(1)
    rows = [drawn(random) for _ in range(ROWS)]
    quarter = dict.fromkeys(KEYS, 0.0) | {"late": 0.75, "inquiries": 0.25}
    rows.append((ExplainedRow(0.9, 0.9, 0.1, quarter, None, 0.0), rows[0][1]))
    answers = in_node(decided, rows, tmp_path)
    seen = set()
    for (row, values), warnings in zip(rows, answers, strict=True):
        reference = expected(decided, row, values)
        sentences = {
            "decision": warnings["decision"],
            "reasons": [
                (r["code"], r["text"], tuple(r["keys"]), r.get("share"), r.get("attribution"))
                for r in warnings["reasons"]
            ],
            "warned": bool(warnings["warnings"]),
            "problem": bool(warnings["problem"]),
        }
        assert sentences == reference, (row, values, warnings)
        seen |= {code for code, *_ in sentences["reasons"]} | {sentences["decision"]}
    assert {"approve", "decline", "R1", "R4", "constructor"} <= seen


def in_node(
    decided: EmbeddedProfile, rows: list[tuple[ExplainedRow, dict[str, Any]]], folder: Path
) -> list[Any]:
    node = need("Node.js")
    (folder / "package.json").write_text('{"type": "module"}')
    for file in (FILES / "decide.js", SHARED / "outcome.js"):
        (folder / file.name).write_text(file.read_text())
    module = folder / "decide.js"
    applicants = [
        {
            "row": {
                "score": None if np.isnan(r.score) else r.score,
                "gap": r.gap,
                "attributions": r.attributions,
            },
            "values": values,
        }
        for r, values in rows
    ]
    profile = decided.profile.model_dump(mode="json")
    content = json.dumps(
        {"decided": {"profile": profile, "tolerance": decided.tolerance}, "rows": applicants}
    )
    command = [node, "--input-type=module", "-e", SCRIPT, str(module)]
    result = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def expected(decided: EmbeddedProfile, row: ExplainedRow, values: dict[str, Any]) -> dict[str, Any]:
    """Return what the page has to say, where the gateway answers it or refuses."""
    from rationale.decisions.domain import domain_faults

    refused = {"decision": None, "reasons": [], "warned": False, "problem": True}
    if decided.profile.outside == "refuse" and any(domain_faults(decided.profile, values)):
        return refused  # by the gateway, before it decides
    if np.isnan(row.score):
        return refused
    try:
        reference = decide(decided, row, values)
    except NoReasonsError:  # the attributions do not add up
        return {
            **refused,
            "decision": decide(decided, ExplainedRow(**{**vars(row), "gap": None}), values).decision,
        }
    return {
        "decision": reference.decision,
        "reasons": [
            (
                r.code,
                r.text,
                r.features,
                *(None if x is None else pytest.approx(x) for x in (r.share, r.attribution)),
            )
            for r in reference.reasons
        ],
        "warned": bool(reference.warnings),
        "problem": False,
    }


@pytest.mark.full
def test_a_margin_that_is_a_bound_s_scores_that_bound(tmp_path: Path) -> None:
    """As decisions have it, in float32 and float64."""
    script = """
    const { decidedScore } = await import(process.argv[1]);
    const [margins, isSingle, profile, answered] = JSON.parse(process.argv[2]);
    const score = (margin, i) => decidedScore(profile, answered[i], false, margin, isSingle);
    console.log(JSON.stringify(margins.map(score)));
    """
    profile = as_profile({**PROFILE, "adverse": "above", "threshold": 1e-8, "refer": [1e-8, 1 - 1e-8]})
    module = tmp_path / "margin.mjs"
    module.write_text((SHARED / "outcome.js").read_text())
    for dtype in (np.float32, np.float64):
        reference = [logit(bound).astype(dtype) for bound in profile.refer or ()]
        margins = np.array([np.nextafter(m, m + by) for m in reference for by in (-1, 0, 1)], dtype)
        answered = 1 / (1 + np.exp(-margins.astype(float)))
        answered[-1] = 0.9  # a model that clips
        wanted_value = decision_scores(profile, answered, margins)
        message = profile.model_dump(mode="json")
        arguments = [margins.astype(float).tolist(), dtype == np.float32, message, answered.tolist()]
        command = [need("Node.js"), "--input-type=module", "-e", script, str(module), json.dumps(arguments)]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        np.testing.assert_allclose(json.loads(result.stdout), wanted_value, rtol=1e-14)
        assert json.loads(result.stdout)[1::3] == [*(profile.refer or ())]


def test_values_that_the_model_does_not_know_are_refused_or_warned_of(tmp_path: Path) -> None:
    script = """
    const { unknownOf } = await import(process.argv[1]);
    const [texts, values] = JSON.parse(process.argv[2]);
    console.log(JSON.stringify(unknownOf(texts, values)));
    """
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for file in (FILES / "decide.js", SHARED / "outcome.js"):
        (tmp_path / file.name).write_text(file.read_text())
    module = tmp_path / "decide.js"
    texts = {
        "job": {"known": ["clerk"], "refuses": True},
        "code": {"known": ["2", "0.5"], "refuses": True},
        "home": {"known": ["own"], "refuses": False},
    }
    for values, refused, warned in (
        ({"job": "clerk", "code": 0.5, "home": "own"}, [], []),
        ({"job": None, "code": None}, [], []),
        ({"job": "Clerk", "code": 2, "home": "boat"}, ["job"], ["home"]),
        ({"job": "", "code": 3, "home": None}, ["code"], []),
    ):
        command = [need("Node.js"), "--input-type=module", "-e", script, str(module)]
        result = subprocess.run(
            [*command, json.dumps([texts, values])], check=True, capture_output=True, text=True
        )
        assert [[each.split("'")[1] for each in records] for records in json.loads(result.stdout)] == [
            refused,
            warned,
        ]


def test_all_modules_of_a_page_are_one_script(tmp_path: Path) -> None:
    """No two of them give a name at their top to different things."""
    script = tmp_path / "page.mjs"
    script.write_text("\n".join(bundle_modules("main.js").values()))
    result = subprocess.run([need("Node.js"), "--check", str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
