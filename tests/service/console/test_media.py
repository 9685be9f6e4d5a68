"""Pictures and words: what is shaded is what the API attributes, whatever was dropped, chosen or pasted."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from sklearn.datasets import load_digits

from tests.service import patient
from tests.service.console import media, models
from tests.service.console.conftest import demand_accessible, demand_no_sideways, press_until
from tests.service.console.node import in_node
from tests.service.console.test_explain import number

THREE = load_digits().images[3]  # 8×8, 0 to 16


def opened(page: Page, gateway: str, model: str, row: Any = None, **more: str) -> Locator:
    """Open the view; returns the panel with the answer."""
    fragment = {**more, **({} if row is None else {"input": json.dumps(row)})}
    query = "".join(f"&{name}={quote(value)}" for name, value in fragment.items())
    page.goto(f"{gateway}/console/#media?model={model}{query}")
    return page.locator(".result")


def explained(gateway: str, model: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Tensors of v2's answer on one row."""
    kinds = {"f": "FP32", "i": "INT64"}
    tensors = [
        {"name": name, "shape": [1, *a.shape], "datatype": kinds[a.dtype.kind], "data": a.ravel().tolist()}
        for name, a in inputs.items()
    ]
    answer = patient.post(f"{gateway}/v2/models/{model}/explain", json={"inputs": tensors})
    assert answer.status_code == 200, answer.text
    return {
        output["name"]: np.reshape(output["data"], output["shape"]) for output in answer.json()["outputs"]
    }


def facts(panel: Locator) -> dict[str, float | str]:
    result = panel.locator(".facts > div").evaluate_all(
        "all => all.map((one) => [one.querySelector('dt').textContent, one.querySelector('dd').textContent])"
    )
    return {name: number(text) if text[-1].isdigit() else text for name, text in result}


def places(panel: Locator) -> list[tuple[int, int, float]]:
    """Rows, columns and relevances of the table of the strongest ones."""
    lines = panel.locator(".strongest tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )
    return [(int(row), int(column), number(value)) for row, column, value in lines]


def demand_strongest(panel: Locator, heat: np.ndarray, abs_: float = 2e-4) -> None:
    actual = places(panel)
    order = np.argsort(-np.abs(heat).ravel())[: len(actual)]
    assert [value for *_, value in actual] == pytest.approx(heat.ravel()[order], abs=abs_)
    for row, column, value in actual:
        assert value == pytest.approx(heat[row - 1, column - 1], abs=abs_)


PIXELS = """canvas =>
    [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"""


def picture(path: Path) -> Path:
    """The digit as a picture of 160×160 pixels of grey."""
    bright = np.kron(np.rint(THREE / 16 * 255), np.ones((20, 20)))
    path.write_bytes(media.png(np.repeat(bright[:, :, None], 3, axis=2)))
    return path


def test_a_picture_file_is_scaled_to_the_models_shape(page: Page, gateway: str, tmp_path: Path) -> None:
    panel = opened(page, gateway, "digits")
    expect(panel).to_contain_text("Nothing is explained yet")
    page.get_by_label("Drop a picture here").set_input_files(picture(tmp_path / "three.png"))
    expect(panel.get_by_label("What is explained")).to_be_visible()
    page.get_by_label("Values of a pixel").select_option("range")
    page.get_by_label("To (one number").fill("16")
    page.get_by_label("To (one number").press("Tab")
    page.wait_for_function("() => location.hash.includes('scaled=to%3A16')")
    expect(page.get_by_label("To (one number")).to_have_value("16")
    page.get_by_text("The numbers themselves, as JSON").click()
    sent = page.locator("#numbers-json")
    page.wait_for_function(
        "() => Math.max(...JSON.parse(document.querySelector('#numbers-json').value).flat(2)) > 10"
    )
    seen = np.array(json.loads(sent.input_value()), np.float32)
    assert seen.shape == (8, 8, 1)
    assert np.abs(seen[:, :, 0] - THREE).max() < 4  # the browser's own smoothing lies between
    expected = explained(gateway, "digits", pixels=seen)
    target = int(expected["explained_value"][0].argmax())
    assert target == 3
    expect(panel.get_by_label("What is explained").locator("option:checked")).to_contain_text("class 3")
    demand_strongest(panel, expected["pixels_attributions"][0, target, :, :, 0])
    shown = facts(panel)
    assert shown["Its value"] == pytest.approx(expected["explained_value"][0, target], abs=2e-4)
    assert shown["Gap"] == pytest.approx(expected["completeness_gap"][0, target], abs=2e-4)
    expect(panel.get_by_role("img", name="relevance over 8 rows and 8 columns")).to_be_visible()
    demand_accessible(page)


@pytest.mark.full
def test_another_target_and_layer_and_what_is_drawn(page: Page, gateway: str) -> None:
    panel = opened(page, gateway, "digits", THREE[:, :, None].tolist())
    expected = explained(gateway, "digits", pixels=THREE[:, :, None].astype(np.float32))
    panel.get_by_label("What is explained").select_option("8")
    demand_strongest(panel, expected["pixels_attributions"][0, 8, :, :, 0])
    panel.get_by_label("Where").select_option("hidden")
    expect(panel.get_by_label("Where")).to_be_focused()
    demand_strongest(panel, expected["hidden_attributions"][0, 8].sum(axis=0))
    heat = np.abs(expected["hidden_attributions"][0, 8].sum(axis=0))
    slider = panel.get_by_label("of the strongest")
    slider.focus()
    for key, least in (("Home", 0.0), ("End", 0.9)):
        page.keyboard.press(key)
        expect(slider).to_be_focused()
        drawn = np.reshape(panel.locator(".heatmap.over canvas").nth(1).evaluate(PIXELS), (8, 8, 4))
        np.testing.assert_array_equal(drawn[:, :, 3] > 0, (heat >= least * heat.max()) & (heat > 0))
    greys = np.reshape(panel.locator(".heatmap.over canvas").nth(0).evaluate(PIXELS), (-1, 4))
    assert (greys[:, 0] == greys[:, 2]).all()
    assert (greys[:, 0] == greys[:, 1]).all()
    row, column, value = places(panel)[0]
    panel.get_by_label("Row", exact=True).fill(str(row))
    panel.get_by_label("Column", exact=True).fill(str(column))
    assert number(panel.locator("output").inner_text().removeprefix("Relevance ")) == value
    box = panel.locator(".heatmap.over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * (column - 0.5) / 8, box["y"] + box["height"] * (row - 0.5) / 8)
    expect(panel.get_by_label("Row", exact=True)).to_have_value(str(row))
    reddest = drawn[row - 1, column - 1]
    assert reddest[3] == 255
    assert (reddest[0] > reddest[2]) == (value > 0)


@pytest.mark.full
def test_words_are_split_by_a_vocabulary_and_shaded(page: Page, gateway: str, tmp_path: Path) -> None:
    panel = opened(page, gateway, "reviews")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(media.VOCABULARY) + "\n")
    page.get_by_label("Vocabulary").set_input_files(vocabulary)
    page.get_by_label("Text", exact=True).fill("The film was badly")
    page.get_by_role("button", name="Explain the text").click()
    expect(panel.locator(".tokens .word")).to_have_text(
        ["[CLS]", "the", "film", "was", "bad", "##ly", "[SEP]"]
    )
    ids = np.array([media.VOCABULARY.index(word) for word in "[CLS] the film was bad ##ly [SEP]".split()])
    expected = explained(gateway, "reviews", ids=ids, mask=np.ones(7, int))
    target = int(expected["explained_value"][0].argmax())
    values = [number(text) for text in panel.locator(".tokens .value").all_inner_texts()]
    assert values == pytest.approx(expected["ids_attributions"][0, target], abs=2e-3)
    strongest = panel.locator(".tokens li").nth(int(np.argmax(np.abs(values))))
    expect(strongest.locator(".word")).to_have_text("bad")
    expect(strongest).to_have_class("raises" if values[4] > 0 else "lowers")
    panel.get_by_label("What is explained").select_option(str(1 - target))
    expect(strongest).to_have_class("lowers" if values[4] > 0 else "raises")
    demand_accessible(page)


@pytest.mark.full
def test_fewer_tokens_are_padded_and_masked_and_hostile_words_are_text(
    page: Page, gateway: str, tmp_path: Path
) -> None:
    panel = opened(page, gateway, "reviews")
    hostile = media.VOCABULARY.index(models.SCRIPT)
    page.get_by_label("Numbers of the tokens").fill(f"[{hostile}, {hostile - 1}, 7]")
    page.get_by_role("button", name="Explain these tokens").click()
    expect(panel.locator(".tokens .word")).to_have_text([f"#{hostile}", f"#{hostile - 1}", "#7", *["#0"] * 4])
    tokens = dict.fromkeys(media.VOCABULARY)
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {word: i for i, word in enumerate(tokens)}}})
    )
    page.get_by_label("Vocabulary").set_input_files(tmp_path / "tokenizer.json")
    expect(panel.locator(".tokens .word").first).to_have_text(models.SCRIPT)
    expect(panel.locator(".tokens .word").nth(1)).to_have_text(models.IMAGE)
    expect(panel.locator(".tokens .padding.neither")).to_have_count(4)  # of no colour: they add nothing
    assert panel.locator(".tokens .value").all_inner_texts()[3:] == ["0"] * 4  # the mask leaves them out
    for wrong, message in (
        ("1, two", "“two” is no token's number"),
        ("1 " * 8, "the model takes 7 tokens, and these are 8"),
        ("", "write the numbers of some tokens"),
    ):
        page.get_by_label("Numbers of the tokens").fill(wrong)
        page.get_by_role("button", name="Explain these tokens").click()
        expect(page.get_by_role("alert")).to_contain_text(message)
    (tmp_path / "none.json").write_text("{")
    page.get_by_label("Vocabulary").set_input_files(tmp_path / "none.json")
    expect(page.get_by_role("alert")).to_have_text("none.json: is no JSON")


@pytest.mark.full
def test_any_array_is_pasted_and_its_faults_are_told(page: Page, gateway: str) -> None:
    panel = opened(page, gateway, "signals")
    area = page.locator("#numbers-json")
    button = page.get_by_role("button", name="Explain these numbers")
    for wrong, message in (
        ("[1,", "not JSON"),
        ("[1, 2]", "signals: the model takes [5, 3], and this is [2]"),
        ("[[1, 2, 3], [1, 2], [1], [1], [1]]", "lists at the same depth differ"),
        ('{"other": [1]}', "the model has no input other"),
        ('{"__proto__": [1]}', "the model has no input __proto__"),
        ('["a", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]', "signals takes numbers"),
        ("{}", "the input signals is missing"),
    ):
        area.fill(wrong)
        button.click()
        expect(page.get_by_role("alert")).to_contain_text(message)
    row = (np.arange(15).reshape(5, 3) / 7).astype(np.float32)
    area.fill(json.dumps(row.ravel().tolist()))
    button.click()
    expect(panel.locator(".heatmap")).to_be_visible()
    expected = explained(gateway, "signals", signals=row)
    demand_strongest(panel, expected["signals_attributions"][0, 0])
    expect(page.get_by_role("alert")).to_be_hidden()
    page.reload()  # the address has it
    expect(panel.locator(".heatmap")).to_be_visible()
    demand_strongest(panel, expected["signals_attributions"][0, 0])


@pytest.mark.full
def test_a_file_that_is_no_picture_and_a_model_of_a_table(page: Page, gateway: str, tmp_path: Path) -> None:
    opened(page, gateway, "digits")
    (tmp_path / "<b>.png").write_text("no picture")
    page.get_by_label("Drop a picture here").set_input_files(tmp_path / "<b>.png")
    expect(page.get_by_role("alert")).to_contain_text("<b>.png: is no picture that this browser can read")
    opened(page, gateway, "credit")
    expect(page.locator("main")).to_contain_text("named features")


@pytest.mark.full
def test_a_dropped_file(page: Page, gateway: str, tmp_path: Path) -> None:
    panel = opened(page, gateway, "digits")
    content = list(picture(tmp_path / "three.png").read_bytes())
    data_transfer = page.evaluate_handle(
        "bytes => { const given = new DataTransfer();"
        " given.items.add(new File([new Uint8Array(bytes)], 'three.png', { type: 'image/png' }));"
        " return given }",
        content,
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": data_transfer})
    expect(panel.locator(".heatmap.over")).to_be_visible()
    expect(page.locator(".drop")).to_contain_text("three.png: 160 × 160 pixels")


@pytest.mark.full
@pytest.mark.parametrize("model", ["digits", "reviews"])
def test_by_the_keyboard_dark_and_narrow(page: Page, gateway: str, model: str) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    row = {"digits": THREE[:, :, None].tolist(), "reviews": [2, 4, 5, 6, 8, 3, 0]}[model]
    panel = opened(page, gateway, model, row)
    expect(panel.locator(".facts")).to_be_visible()
    demand_accessible(page)
    demand_no_sideways(page)
    press_until(page, '.result select[name="what-is-explained"]')
    select = panel.locator('select[name="what-is-explained"]')
    before, is_first = facts(panel)["Its value"], select.input_value() == "0"
    page.keyboard.press("ArrowDown" if is_first else "ArrowUp")
    expect(select).to_be_focused()
    assert facts(panel)["Its value"] != before


# --- functions ------------------------------------------------------------------------------------------


def test_regions_add_up_and_say_which_places_they_are_of() -> None:
    values = np.random.default_rng(0).normal(size=(5, 7))
    heat = {"rows": 5, "columns": 7, "values": values.ravel().tolist()}
    body = """
      const sums = own.regions(given, 3);
      return [sums, own.valueAt(sums, 4, 6), own.valueAt(given, 4, 6)];
    """
    result, last, single = in_node(["pictures/heatmap.js"], body, heat)
    expected = [[values[i : i + 3, j : j + 3].sum() for j in (0, 3, 6)] for i in (0, 3)]
    np.testing.assert_allclose(np.reshape(result["values"], (2, 3)), expected)
    assert (last["value"], last["rows"], last["columns"]) == (pytest.approx(values[3:, 6].sum()), "4–5", "7")
    assert (single["value"], single["rows"], single["columns"]) == (values[4, 6], "5", "7")


@pytest.mark.parametrize(
    ("value", "most", "least", "expected"),
    [
        (0.25, 1, 0.25, 0.5125),  # a value at the share is drawn
        (-0.25, 1, 0.25, 0.5125),
        (0.2499, 1, 0.25, 0),
        (0, 1, 0, 0),
        (0, 0, 0, 0),
        (-3, 3, 0.9, 1),
    ],
)
def test_only_strong_values_are_drawn(value: float, most: float, least: float, expected: float) -> None:
    body = "return own.opacityOf(...given);"
    assert in_node(["pictures/heatmap.js"], body, [value, most, least]) == pytest.approx(expected)
