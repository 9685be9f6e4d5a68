"""An entry's page in a real Chromium, opened from disk with the network off: the graph's own numbers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from rationale import compile_model
from rationale.artifact.compiled import Compiled, Explanation
from rationale.artifact.entry import open_entry
from rationale.decisions.decide import decide
from rationale.decisions.rows import attribution_keys, explained_rows, feature_values
from rationale.export.page import export_page
from rationale.schema.outputs import OUTPUT_KINDS
from tests.compiler.export.conftest import MOST_MS
from tests.compiler.models import parsed
from tests.needs import need
from tests.service.console.conftest import demand_accessible, demand_no_sideways, press_until
from tests.service.console.models import CLASSES, HOSTILE
from tests.test_output_kinds import KINDS, MODEL, Squares

Values = Mapping[str, Any]
Open = Callable[[str], Page]
OUTCOMES = {"approve": "Approved", "refer": "A person decides", "decline": "Declined"}
NUMBERS = """async () => {
    await new Promise((done) => setTimeout(done, 60));
    const rows = [...document.querySelectorAll("#digits tbody tr")];
    return rows.map(({ cells }) => [...cells].map((cell) => cell.textContent));
}"""


def facts_of(page: Page) -> dict[str, Any]:
    return json.loads(page.locator("#facts").text_content())


def fill(page: Page, values: Values) -> None:
    """Give each feature its value, as somebody types or chooses it; None leaves the box empty."""
    for field in facts_of(page)["fields"]:
        box, value = entry(page, field["name"]), values[field["name"]]
        if "choices" in field:
            position = 0 if value is None else field["choices"].index(value) + field["missing"]
            box.select_option(index=position)
        else:
            put(box, "" if value is None else str(value))


def entry(page: Page, name: str, end: str = "") -> Locator:
    """Return the box of a feature's value; with the end "-slider" its slider."""
    names = [field["name"] for field in facts_of(page)["fields"]]
    return page.locator(f"#field-{names.index(name)}{end}")


def put(box: Locator, text: str) -> None:
    box.fill(text)
    box.press("Enter")


def shown(page: Page) -> dict[str, list[str]]:
    """Return what the page has under "All digits", once it answers the last change."""
    return {name: remaining for name, *remaining in page.evaluate(NUMBERS)}


def inputs_of(facts: Mapping[str, Any], values: Values) -> dict[str, np.ndarray]:
    dtypes = {"string": object, "bool": bool}
    rows = {}
    for spec in facts["inputs"]:
        expected = [values[f["name"]] for f in facts["fields"] if f.get("input") == spec["name"]]
        cells = [np.nan if value is None else value for value in expected]
        rows[spec["name"]] = np.array(cells, dtypes.get(spec["type"], spec["type"])).reshape(spec["shape"])
    return rows


def demand_same(page: Page, compiled: Compiled, values: Values, target: int = 0) -> Explanation:
    """Assert that the page shows what the entry answers here; return that answer."""
    actual = shown(page)
    answer = compiled.explain(inputs_of(facts_of(page), values))
    manifest = compiled.manifest

    def number(name: str | None) -> float | None:
        return None if name is None else float(answer[name][0, target])

    flat = [answer[e.attributions][0, target].reshape(-1) for e in manifest.attributed]
    keys = [
        key.replace("\u202e", "\\u202e") for key in attribution_keys(manifest)
    ]  # which would turn a name round
    expected = dict(zip(keys, np.concatenate(flat).tolist(), strict=True))
    expected["explained value"] = number(manifest.explained_value)
    expected |= {"base value": number(manifest.base_value)} if manifest.base_value else {}
    expected |= {"completeness gap": number(manifest.completeness_gap)} if manifest.completeness_gap else {}
    assert set(actual) == {*expected, "score"}
    for name, value in expected.items():
        assert float(actual[name][1]) == pytest.approx(value, rel=1e-5, abs=1e-5), (name, values)
    errors = [answer[e.standard_error][0, target] for e in manifest.attributed if e.standard_error]
    for name, error in zip(keys, np.concatenate(errors or [np.empty(0)]), strict=bool(errors)):
        assert float(actual[name][2]) == pytest.approx(error, rel=1e-5, abs=1e-5)
    return answer


# --- the numbers ------------------------------------------------------------------------------------------


def drawn(facts: Mapping[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """Draw values over the ranges of the sliders, categories and flags; now and then one that is missing."""
    values: dict[str, Any] = {}
    for field in facts["fields"]:
        if field["missing"] and random.random() < 0.3:
            values[field["name"]] = None
        elif "choices" in field:
            values[field["name"]] = field["choices"][random.integers(len(field["choices"]))]
        else:
            value = random.uniform(field["least"], field["most"])
            values[field["name"]] = round(value, 0 if field.get("whole") else 6)
    return values


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "words",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in (
                "credit",  # whose numbers the tests of sliders hold in every run
                "trees",
                "double",
                "classes",
                "one_shot",
                "relevance",
                "integers",
                "hostile.model",
            )
        ),
    ],
)
def test_the_same_numbers(opened: Open, repository: Path, name: str) -> None:
    page, compiled = opened(name), open_entry(repository, name)
    random, facts, scores = np.random.default_rng(5), facts_of(page), set()
    for _ in range(8):
        values = drawn(facts, random)
        fill(page, values)
        demand_same(page, compiled, values)
        scores.add(shown(page)["score"][1])
    assert len(scores) > 4


def test_a_further_kind_of_output_is_shown(
    context: BrowserContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("npm")
    for kind in KINDS:
        monkeypatch.setitem(OUTPUT_KINDS, kind.name, kind)
    compile_model(parsed(MODEL), Squares()).write(tmp_path, "squares")
    export_page(tmp_path, "squares", tmp_path / "page.html")
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    digits = page.locator("#digits")
    expect(digits).to_contain_text("largest", timeout=MOST_MS)
    assert digits.locator("thead th").all_text_contents() == ["Name", "Value", "Number", "square"]
    rows = digits.locator("tbody tr").all()
    actual = {row.locator("th").text_content(): row.locator("td").all_text_contents() for row in rows}
    for name in ("x[0]", "x[1]", "x[2]"):
        _, attribution, square = actual[name]
        assert float(square) == pytest.approx(float(attribution) ** 2, rel=1e-5)


@pytest.mark.full
def test_each_target(opened: Open, repository: Path) -> None:
    page, compiled = opened("classes"), open_entry(repository, "classes")
    values = drawn(facts_of(page), np.random.default_rng(1))
    fill(page, values)
    expect(page.locator("#digits thead")).to_contain_text("Standard error")
    page.get_by_label("Explained").focus()
    for target in range(3):
        page.get_by_label("Explained").select_option(f"y [{target}]")
        expect(page.get_by_label("Explained")).to_be_focused()
        demand_same(page, compiled, values, target)


@pytest.mark.full
def test_classes_are_named_with_the_probability_of_each(opened: Open, repository: Path) -> None:
    page, compiled = opened("five"), open_entry(repository, "five")
    values = drawn(facts_of(page), np.random.default_rng(1))
    fill(page, values)
    (expected,) = demand_same(page, compiled, values)["probabilities"]
    order = np.argsort(-expected, kind="stable")
    lines = page.locator(".classes tbody tr")
    assert lines.locator("th").all_inner_texts() == [sorted(CLASSES)[i] for i in order]
    for share, i in zip(lines.locator(".number").all_inner_texts(), order, strict=True):
        assert float(share.removesuffix("%")) == pytest.approx(100 * expected[i], abs=0.0051)
    page.get_by_label("Explained").select_option(sorted(CLASSES)[2])
    expect(page.locator(".classes .explained th")).to_have_text(sorted(CLASSES)[2])


# --- decisions --------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", ["credit", "double", "ends", "low_end", "high_end"])
def test_decision_and_reasons(opened: Open, repository: Path, name: str) -> None:
    page, compiled = opened(name), open_entry(repository, name)
    decided = compiled.manifest.decision
    assert decided is not None
    random, outcomes = np.random.default_rng(2), set()
    for _ in range(12):
        values = drawn(facts_of(page), random)
        fill(page, values)
        shown(page)
        inputs = inputs_of(facts_of(page), values)
        answer = compiled.explain(inputs)
        instance = {k: v for k, v in values.items() if v is not None}
        (message,) = feature_values(compiled.manifest, inputs, [instance])
        records = decide(decided, explained_rows(compiled.manifest, answer)[0], message)
        expect(page.locator(".outcome")).to_have_text(OUTCOMES[records.decision])
        assert page.locator("#reasons li").evaluate_all(
            "items => items.map((each) => each.dataset.code)"
        ) == [reason.code for reason in records.reasons]
        texts = page.locator("#reasons li").all_text_contents()
        assert all(text.startswith(r.text) for text, r in zip(texts, records.reasons, strict=True))
        outcomes.add(records.decision)
        expect(page.locator(".sentence")).to_contain_text("the threshold")
        expect(page.locator(".axis .reached")).to_be_visible()
    assert len(outcomes) > 1


@pytest.mark.full
def test_what_the_profile_does_not_take(opened: Open) -> None:
    page = opened("double")
    put(entry(page, "age"), "17")
    expect(page.locator(".decision .problem")).to_have_text("Nothing is decided: Age is less than 18.")
    expect(page.locator(".outcome")).to_have_count(0)


@pytest.mark.full
def test_a_word_that_the_model_was_not_trained_on_is_warned_of(opened: Open) -> None:
    page = opened("unfamiliar")
    warning = page.locator("#shown .warning")
    page.get_by_label("job").select_option("clerk")
    expect(page.locator(".outcome")).to_have_count(1)
    expect(warning).to_have_count(0)
    page.get_by_label("job").select_option("boat")
    expect(warning).to_have_text(
        "Feature 'job' is a category that the model was not trained on: it takes it as unknown or missing."
    )
    expect(page.locator(".outcome")).to_have_count(1)
    assert page.get_by_label("code").locator("option").all_text_contents() == ["missing", "2", "7", "31"]


# --- fields -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_slider_by_the_keyboard(opened: Open, repository: Path) -> None:
    page = opened("credit")
    before = shown(page)["score"]
    press_until(page, f"#{entry(page, 'utilisation', '-slider').get_attribute('id')}")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    box = entry(page, "utilisation")
    assert float(box.input_value()) > 0.5
    assert shown(page)["score"] != before
    names = [field["name"] for field in facts_of(page)["fields"]]
    values = {name: float(entry(page, name).input_value()) for name in names}
    demand_same(page, open_entry(repository, "credit"), values)
    page.get_by_role("button", name="Begin again").click()
    assert shown(page)["score"] == before
    expect(page.get_by_role("status")).to_contain_text("Score 10.69%, Approved")


@pytest.mark.full
def test_every_move_of_a_slider_is_answered_and_the_last_one_shown(opened: Open, repository: Path) -> None:
    page = opened("credit")
    milliseconds = entry(page, "income", "-slider").evaluate("""async (slider) => {
        const frame = () => new Promise(requestAnimationFrame);
        const took = [];
        for (let i = 0; i < 100; i += 1) {
            const before = document.getElementById("digits");
            slider.value = Number(slider.min) + (i * (slider.max - slider.min)) / 100;
            const start = performance.now();
            slider.dispatchEvent(new Event("input"));
            while (document.getElementById("digits") === before) await frame();
            took.push(performance.now() - start);
        }
        return took.sort((a, b) => a - b);
    }""")
    print(f"from a slider's event to the frame that shows it: {milliseconds[50]:.0f} ms, median of 100")
    names = [field["name"] for field in facts_of(page)["fields"]]
    values = {name: float(entry(page, name).input_value()) for name in names}
    demand_same(page, open_entry(repository, "credit"), values)


@pytest.mark.full
def test_what_is_no_value(opened: Open) -> None:
    page = opened("credit")
    box = entry(page, "income")
    put(box, "")
    told = "Income: a value is missing, which the model does not take"
    expect(page.locator("#shown")).to_have_text(f"The row is incomplete, so it has no score: {told}.")
    expect(page.locator(".note").first).to_have_text(told)
    expect(box).to_have_attribute("aria-invalid", "true")
    demand_accessible(page)
    put(box, "20000")
    expect(page.locator("table.bars")).to_be_visible()
    expect(box).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.full
def test_a_whole_number_is_needed(opened: Open) -> None:
    page = opened("integers")
    put(entry(page, "months"), "1.5")
    expect(page.locator("#shown")).to_contain_text("months: a whole number is needed")


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.full), "dark"])
def test_readable_and_accessible(opened: Open, scheme: str) -> None:
    page = opened("credit")
    page.emulate_media(color_scheme=scheme)
    put(entry(page, "late_payments_2y"), "4")
    expect(page.locator(".outcome")).to_have_text("Declined")
    page.locator("details summary").evaluate_all("all => all.forEach((each) => each.click())")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        demand_accessible(page)
        demand_no_sideways(page)


@pytest.mark.full
def test_hostile_names_and_values_are_texts(opened: Open) -> None:
    page = opened("hostile.model")
    page.on("dialog", lambda _: pytest.fail("a name ran as a script"))
    for name in HOSTILE:
        text = name.replace("\u202e", "\\u202e")
        expect(page.locator("table.bars th").filter(has_text=text).first).to_contain_text(text)
    page.locator("select").select_option(label="<script>alert(4)</script>")
    expect(page.locator("table.bars")).to_contain_text("<script>alert(4)</script>")
    assert page.locator("img, svg[onload], script:not([type])").count() == 0


@pytest.mark.full
def test_the_policy_lets_nothing_out_and_no_script_in(context: Any, exported: Callable[[str], Path]) -> None:
    page = context.new_page()
    page.goto(exported("credit").as_uri())
    expect(page.locator("table.bars")).to_be_visible(timeout=MOST_MS)
    refused = page.evaluate("""async () => {
        const refused = [];
        document.addEventListener("securitypolicyviolation", (one) => refused.push(one.effectiveDirective));
        await fetch("https://example.org/").catch(() => {});
        const add = (tag, own) => document.body.append(Object.assign(document.createElement(tag), own));
        add("img", { src: "https://example.org/x.png" });
        add("script", { textContent: "window.ran = true" });
        add("script", { src: "data:text/javascript,window.ran = true" });
        add("style", { textContent: "body { display: none }" });
        add("iframe", { src: "https://example.org/" });
        try { new WebSocket("wss://example.org/"); } catch { refused.push("thrown"); }
        add("div", {});
        document.body.lastChild.setAttribute("onclick", "window.ran = true");
        document.body.lastChild.click();
        await new Promise((done) => setTimeout(done, 300));
        return [window.ran ?? false, [...new Set(refused)].sort()];
    }""")
    expected = ["connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem", "style-src-elem"]
    assert refused == [False, expected]


PROBED = "credit"


@pytest.mark.parametrize(("by", "refuses"), [(1e-4, False), (1e-2, True)])
def test_a_browser_that_answers_otherwise_says_so(
    context: BrowserContext, exported: Callable[[str], Path], tmp_path: Path, by: float, refuses: bool
) -> None:
    """The page's due answers are moved, as if the browser's were."""
    text = exported(PROBED).read_text("utf-8")
    start = text.index('id="facts">') + len('id="facts">')
    end = text.index("</script>", start)
    facts = json.loads(text[start:end])
    for output in facts["probes"]["outputs"]:
        output["data"] = [value + by * output["scale"] for value in output["data"]]
    (tmp_path / "page.html").write_text(text[:start] + json.dumps(facts) + text[end:], "utf-8")
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    if refuses:
        expect(page.locator("#state")).to_contain_text("does not answer as the model did", timeout=MOST_MS)
        expect(page.locator("#main")).to_be_hidden()
    else:
        expect(page.locator("#drift")).to_contain_text("differs by 0.00010 of its range", timeout=MOST_MS)
        expect(page.locator("table.bars")).to_be_visible()


def test_a_page_tells_how_it_proved_itself(opened: Open) -> None:
    page = opened(PROBED)
    assert facts_of(page)["probes"]["rows"] > 0
    expect(page.locator("#facts-shown")).to_contain_text("it answered")
    expect(page.locator("#drift")).to_have_count(0)
