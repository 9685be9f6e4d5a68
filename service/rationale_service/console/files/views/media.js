// Pictures and words: relevance over what a table cannot hold. Files are decoded here and sent nowhere as such.

import { Latest } from "../api.js";
import { fill, h } from "../dom.js";
import { number, signed } from "../format.js";
import { heatmap, largest, legend, listed, plain, regions, strongest, valueAt } from "../pictures/heatmap.js";
import { tokens } from "../pictures/tokens.js";
import { explain, fitted, flat, size } from "../tensors.js";
import * as words from "../words.js";

export const title = "Pictures and words";

const KINDS = { picture: "A picture", words: "Words", numbers: "Numbers" };
const SUFFIX = "_attributions";
const OPEN = 32; // a length that the model leaves open, until somebody says another
const MOST_WORDS = 4000; // shown
const MOST_IN_ADDRESS = 4000; // characters
const MOST_VALUES = 4_000_000;
const MOST_REGIONS = 28; // along the longer side of a picture
const ROUNDING = 1e-6;

// How a pixel of 0 to 1 becomes what the model takes: (pixel − mean) / deviation, for each channel.
const SCALES = {
  unit: { title: "0 to 1", mean: [0], deviation: [1] },
  bytes: { title: "0 to 255", mean: [0], deviation: [1 / 255] },
  centred: { title: "−1 to 1", mean: [0.5], deviation: [0.5] },
  imagenet: { title: "ImageNet’s mean and deviation", mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] },
  range: { title: "a range of its own", fields: { from: "From", to: "To" } },
  moments: { title: "a mean and deviation of its own", fields: { mean: "Mean", deviation: "Deviation" } },
};

/** Why there is nothing to see for this model; empty where there is. */
export function unavailable(model) {
  const holds = model.inputs.some((input) => input.features === undefined || input.shape.length > 1 || isWords(input));
  return holds ? "" : "The model takes named features, not pictures or words: use the view Explain.";
}

const isWords = ({ datatype, shape }) => /^U?INT/.test(datatype) && shape.length === 1 && shape[0] !== 1;

function isPicture({ datatype, shape }) {
  if (datatype === "BYTES" || (shape.length !== 2 && shape.length !== 3)) return false;
  return shape.length === 2 || [1, 3, 4].includes(shape[0]) || [1, 3, 4].includes(shape[2]);
}

export async function show(root, address, context) {
  new View(root, address, context).begin();
}

class View {
  constructor(root, address, { model, signal, go, say }) {
    Object.assign(this, { root, model, signal, go, say });
    this.main = model.inputs.find(isPicture) ?? model.inputs.find(isWords) ?? model.inputs[0];
    const fits = isPicture(this.main) && this.main.shape.length === 3 ? "picture" : isWords(this.main) ? "words" : "numbers";
    const kind = address.kind in KINDS ? address.kind : fits;
    this.state = { kind, fit: "crop", scale: "unit", own: {}, invert: false, least: 25, detail: "regions", target: null, layer: null, words: null };
    if (address.scale in SCALES) this.state.scale = address.scale;
    this.state.own = own(address.scaled);
    this.state.layout = address.layout === "last" || address.layout === "first" ? address.layout : layoutOf(this.main.shape);
    this.lengths = this.main.shape.map((n) => (n < 0 ? OPEN : n));
    this.given = address.input;
    this.latest = new Latest(
      (inputs) => explain(model.model, inputs, { explainer: model.explainer }, { signal }),
      (answer, inputs) => this.answered(answer, inputs),
      (error) => this.refused(error),
    );
  }

  begin() {
    this.form = h("div", { class: "panel" });
    this.result = h("div", { class: "panel result" });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.root.append(
      h("h1", {}, `${title}: ${this.model.model}`),
      h("div", { class: "sides" }, this.form, this.result),
    );
    this.result.append(h("p", { class: "quiet" }, "Nothing is explained yet."));
    this.draw();
    if (this.given) this.paste(this.given);
  }

  // --- the form ------------------------------------------------------------------------------------------

  draw() {
    const { kind } = this.state;
    fill(
      this.form,
      h(
        "fieldset",
        {},
        h("legend", {}, "What the model sees"),
        h("div", { class: "row" }, this.kinds()),
      ),
      kind === "picture" && this.pictureForm(),
      kind === "words" && this.wordsForm(),
      this.numbersForm(kind === "numbers"),
      this.problem,
    );
  }

  kinds() {
    return Object.entries(KINDS).map(([kind, called]) =>
      h(
        "label",
        { class: "check" },
        h("input", {
          type: "radio",
          name: "kind",
          value: kind,
          checked: kind === this.state.kind,
          onchange: () => {
            this.state.kind = kind;
            this.go({ kind });
            this.draw();
            if (this.answer) this.redraw();
          },
        }),
        called,
      ),
    );
  }

  pictureForm() {
    this.file ??= h("input", { type: "file", accept: "image/*", id: "picture-file", onchange: (event) => this.take(event.target.files[0]) });
    const drop = h(
      "div",
      {
        class: "drop",
        ondragover: (event) => (event.preventDefault(), drop.classList.add("over")),
        ondragleave: () => drop.classList.remove("over"),
        ondrop: (event) => {
          event.preventDefault();
          drop.classList.remove("over");
          this.take(event.dataTransfer.files[0]);
        },
      },
      h("p", {}, h("label", { for: "picture-file" }, "Drop a picture here, or choose a file")),
      this.file,
      this.image && h("p", { class: "quiet" }, `${this.named}: ${this.image.width} × ${this.image.height} pixels`),
    );
    const { rows, columns, channels } = this.frame();
    return [
      drop,
      h(
        "div",
        { class: "row" },
        this.pick("Values of a pixel", "scale", Object.fromEntries(Object.entries(SCALES).map(([name, one]) => [name, one.title]))),
        this.pick("Scaled to the model’s size", "fit", { crop: "its middle", whole: "stretched", inside: "whole, with bars" }),
        this.main.shape.length === 3 && this.pick("Channels", "layout", { first: "come first", last: "come last" }),
        this.ownScale(),
        this.openLengths(),
        this.check("Light and dark exchanged", "invert"),
      ),
      h("p", { class: "quiet" }, `The model takes ${columns} × ${rows} pixels of ${channels} channel${channels > 1 ? "s" : ""}. The file does not tell how training scaled their values: choose it.`),
    ];
  }

  pick(called, name, options) {
    return h(
      "label",
      { class: "entry" },
      h("span", {}, called),
      h(
        "select",
        { name, onchange: (event) => this.set(name, event.target.value) },
        Object.entries(options).map(([value, text]) => h("option", { value, selected: value === this.state[name] }, text)),
      ),
    );
  }

  check(called, name) {
    const box = h("input", { type: "checkbox", name, checked: this.state[name], onchange: () => this.set(name, box.checked) });
    return h("label", { class: "check" }, box, called);
  }

  ownScale() {
    const fields = SCALES[this.state.scale].fields ?? {};
    return Object.entries(fields).map(([name, called]) =>
      h(
        "label",
        { class: "entry" },
        h("span", {}, `${called} (one number, or one for each channel)`),
        h("input", {
          name,
          inputmode: "decimal",
          value: (this.state.own[name] ?? defaults(name)).join(", "),
          onchange: (event) => {
            const given = event.target.value.split(/[\s,;]+/).filter(Boolean).map(Number);
            if (!given.length || given.some((one) => !Number.isFinite(one))) return this.fail(`${called}: write numbers, with commas between them`);
            this.set("own", { ...this.state.own, [name]: given });
          },
        }),
      ),
    );
  }

  openLengths() {
    return this.main.shape.map(
      (n, axis) =>
        n < 0 &&
        h(
          "label",
          { class: "entry" },
          h("span", {}, `Length of axis ${axis + 1}, which the model leaves open`),
          h("input", {
            type: "number",
            min: 1,
            max: 4096,
            value: this.lengths[axis],
            onchange: (event) => {
              this.lengths[axis] = Math.min(4096, Math.max(1, Math.round(Number(event.target.value)) || 1));
              this.draw();
              this.repeat();
            },
          }),
        ),
    );
  }

  wordsForm() {
    const text = h("textarea", { id: "words-text", spellcheck: "false", placeholder: "The text to explain" });
    const ids = h("textarea", { id: "words-ids", spellcheck: "false", placeholder: "101, 2023, 102" });
    const has = this.state.words;
    this.vocabulary ??= h("input", { type: "file", accept: ".txt,.json,text/plain,application/json", onchange: (event) => this.learn(event.target.files[0]) });
    const explainText = () => this.attempt(() => this.explainIds((ids.value = words.encode(text.value, has).join(", "))));
    text.value = this.written?.text ?? "";
    ids.value = this.written?.ids ?? "";
    const keep = () => (this.written = { text: text.value, ids: ids.value });
    for (const area of [text, ids]) area.addEventListener("input", keep);
    return [
      h("label", { class: "entry" }, h("span", {}, "Numbers of the tokens"), ids),
      h("p", { class: "row" }, h("button", { type: "button", class: "first", onclick: () => (keep(), this.attempt(() => this.explainIds(ids.value))) }, "Explain these tokens")),
      h(
        "label",
        { class: "entry" },
        h("span", {}, "Vocabulary: one token a line, {\"token\": number}, or a tokenizer.json"),
        this.vocabulary,
      ),
      has && [
        h("p", { class: "quiet" }, `${number(has.size, 9)} tokens. A text is split into the longest tokens that fit; where the model’s own tokenizer splits otherwise, give its numbers above.`),
        h("label", { class: "entry" }, h("span", {}, "Text"), text),
        h("p", { class: "row" }, h("button", { type: "button", onclick: () => (explainText(), keep()) }, "Explain the text")),
      ],
    ];
  }

  numbersForm(isOpen) {
    this.pasted = h("textarea", { id: "numbers-json", spellcheck: "false", placeholder: this.example() });
    if (this.inputs) this.pasted.value = this.writtenOut() ?? "";
    return h(
      "details",
      { open: isOpen },
      h("summary", {}, "The numbers themselves, as JSON"),
      h(
        "p",
        { class: "quiet" },
        "One row: a list for ",
        h("code", {}, this.model.inputs[0].name),
        this.model.inputs.length > 1 ? ", or an object with a list for each input: " : " of the shape ",
        this.model.inputs.map((input, i) => [i ? ", " : "", h("code", {}, `${input.name} [${input.shape.map((n) => (n < 0 ? "any" : n)).join(", ")}]`), ` ${input.datatype}`]),
        ". Flat lists will do.",
      ),
      h("label", { class: "entry" }, h("span", {}, "Numbers"), this.pasted),
      h("p", { class: "row" }, h("button", { type: "button", class: isOpen ? "first" : "", onclick: () => this.paste(this.pasted.value) }, "Explain these numbers")),
    );
  }

  example() {
    const short = (input) => (input.shape.length > 1 ? "[[0.5, …], …]" : "[0.5, …]");
    return this.model.inputs.length > 1 ? `{${this.model.inputs.map((one) => `${JSON.stringify(one.name)}: ${short(one)}`).join(", ")}}` : short(this.main);
  }

  // --- what is asked -------------------------------------------------------------------------------------

  set(name, value) {
    this.state[name] = value;
    this.fail("");
    const written = Object.keys(this.state.own).length ? Object.entries(this.state.own).map(([key, all]) => `${key}:${all.join("_")}`).join(".") : "";
    this.go({ scale: this.state.scale === "unit" ? "" : this.state.scale, scaled: written, layout: this.state.layout === layoutOf(this.main.shape) ? "" : this.state.layout });
    this.draw();
    const select = this.form.querySelector(`[name="${name}"]`);
    select?.focus();
    this.repeat();
  }

  /** Explain the picture again, as it is scaled now; numbers that were pasted stay as they are. */
  repeat() {
    if (this.image) this.attempt(() => this.explainImage());
    else if (this.answer) this.redraw();
  }

  attempt(act) {
    this.fail("");
    try {
      act();
    } catch (error) {
      this.fail(error.message);
    }
  }

  fail(text) {
    this.problem.textContent = text;
  }

  refused(error) {
    if (error.name === "AbortError") return;
    this.fail(`${error.title ? `${error.title}: ` : ""}${error.detail ?? error.message}`);
    this.result.removeAttribute("aria-busy");
  }

  async take(file) {
    if (!file) return;
    this.fail("");
    try {
      this.image = await createImageBitmap(file);
      this.named = file.name;
      if (this.signal.aborted) return;
      this.draw();
      this.attempt(() => this.explainImage());
    } catch {
      this.fail(`${file.name}: is no picture that this browser can read; PNG, JPEG, WebP and GIF are`);
    }
  }

  async learn(file) {
    if (!file) return;
    try {
      this.state.words = words.vocabulary(await file.text());
      this.fail("");
    } catch (error) {
      this.fail(`${file.name}: ${error instanceof SyntaxError ? "is no JSON" : error.message}`);
      return;
    }
    this.draw();
    if (this.answer) this.redraw();
  }

  /** Rows, columns and channels of a picture, by the layout of now. */
  frame() {
    const lengths = this.lengths;
    if (lengths.length < 2) return { rows: 1, columns: lengths[0] ?? 1, channels: 1 };
    if (lengths.length === 2) return { rows: lengths[0], columns: lengths[1], channels: 1 };
    const [first, second, third] = lengths;
    return this.state.layout === "first" ? { rows: second, columns: third, channels: first } : { rows: first, columns: second, channels: third };
  }

  explainImage() {
    const { rows, columns, channels } = this.frame();
    if (![1, 3, 4].includes(channels)) throw new Error(`a picture has 1, 3 or 4 channels, and not ${channels}: choose where they stand`);
    const pixels = scaled(this.image, rows, columns, this.state.fit).data;
    const { mean, deviation } = this.scaling(channels);
    const values = new Float64Array(rows * columns * channels);
    for (let at = 0; at < rows * columns; at += 1) {
      for (let c = 0; c < channels; c += 1) {
        const given = channels === 1 ? 0.299 * pixels[4 * at] + 0.587 * pixels[4 * at + 1] + 0.114 * pixels[4 * at + 2] : pixels[4 * at + c];
        const share = this.state.invert ? 1 - given / 255 : given / 255;
        values[this.place(at, c, rows * columns, channels)] = (share - mean[c]) / deviation[c];
      }
    }
    this.ask({ [this.main.name]: { shape: this.lengths, data: values } });
  }

  scaling(channels) {
    const { scale, own: given } = this.state;
    const of = (name) => Array.from({ length: channels }, (_, c) => pickOne(given[name] ?? defaults(name), c));
    if (scale === "range") {
      const [from, to] = [of("from"), of("to")];
      if (from.some((low, c) => low === to[c])) throw new Error("a range begins and ends at different numbers");
      return { mean: from.map((low, c) => -low / (to[c] - low)), deviation: from.map((low, c) => 1 / (to[c] - low)) };
    }
    const chosen = scale === "moments" ? { mean: of("mean"), deviation: of("deviation") } : SCALES[scale];
    if (chosen.deviation.includes(0)) throw new Error("a deviation is not 0");
    return { mean: fillUp(chosen.mean, channels), deviation: fillUp(chosen.deviation, channels) };
  }

  place(at, channel, pixels, channels) {
    return this.main.shape.length === 3 && this.state.layout === "last" ? at * channels + channel : channel * pixels + at;
  }

  explainIds(text) {
    const given = words.numbers(text);
    if (!given.length) throw new Error("write the numbers of some tokens");
    const [length] = this.main.shape;
    if (length > 0 && given.length > length) throw new Error(`the model takes ${length} tokens, and these are ${given.length}`);
    const pad = this.state.words?.pad ?? 0;
    const missing = length > 0 ? length - given.length : 0;
    this.padding = given.length;
    const ids = [...given, ...Array(missing).fill(pad)];
    this.ask({ [this.main.name]: { shape: [ids.length], data: ids } });
  }

  paste(text) {
    this.image = null;
    this.attempt(() => {
      let given;
      try {
        given = JSON.parse(text);
      } catch {
        throw new Error("this is not JSON: write a list such as [[0, 0.5], [1, 0]], or an object with one for each input");
      }
      const named = given !== null && typeof given === "object" && !Array.isArray(given) ? given : { [this.main.name]: given };
      const unknown = Object.keys(named).find((name) => !this.model.inputs.some((input) => input.name === name));
      if (unknown !== undefined) throw new Error(`the model has no input ${unknown}`);
      const rows = Object.entries(named).map(([name, each]) => {
        const { shape, data } = flat(each);
        const wanted = this.model.inputs.find((input) => input.name === name).shape;
        const found = fitted(wanted, shape);
        if (found === null) throw new Error(`${name}: the model takes [${wanted.map((n) => (n < 0 ? "any" : n)).join(", ")}], and this is [${shape.join(", ")}]`);
        return [name, { shape: found, data }];
      });
      const row = Object.fromEntries(rows);
      if (!Object.hasOwn(row, this.main.name)) throw new Error(`the input ${this.main.name} is missing`);
      this.lengths = row[this.main.name].shape;
      this.padding = null;
      this.ask(row);
    });
  }

  /** Ask for the explanation of a row; inputs that it leaves out are a mask of ones, or zeros. */
  ask(row) {
    const length = row[this.main.name].shape[0];
    const inputs = this.model.inputs.map(({ name, datatype, shape }) => {
      const given = Object.hasOwn(row, name) ? row[name] : this.besides(name, shape.map((n) => (n < 0 ? length : n)));
      if (size(given.shape) > MOST_VALUES) throw new Error(`${name} has more than ${number(MOST_VALUES, 9)} values`);
      if (datatype !== "BYTES" && Array.from(given.data).some((one) => typeof one !== "number")) throw new Error(`${name} takes numbers`);
      return { name, datatype, shape: [1, ...given.shape], data: given.data };
    });
    this.result.setAttribute("aria-busy", "true");
    this.latest.ask(inputs);
  }

  besides(name, shape) {
    const ones = /mask/i.test(name);
    const data = Array(size(shape)).fill(ones ? 1 : 0);
    if (ones && this.padding && shape.length === 1) data.fill(0, this.padding);
    return { shape, data };
  }

  // --- what is answered ----------------------------------------------------------------------------------

  answered(answer, inputs) {
    if (this.signal.aborted) return;
    Object.assign(this, { answer, inputs });
    this.fail("");
    this.result.removeAttribute("aria-busy");
    const written = this.writtenOut();
    this.pasted.value = written ?? "";
    this.go({ input: written && written.length <= MOST_IN_ADDRESS ? written : "" });
    this.redraw();
    this.say(`Explained: ${this.targetNames()[this.target()]}`);
  }

  writtenOut() {
    if (this.inputs.reduce((total, one) => total + one.data.length, 0) > 2 * MOST_IN_ADDRESS) return null;
    const lists = Object.fromEntries(this.inputs.map((one) => [one.name, nested(Array.from(one.data, rounded), one.shape.slice(1))]));
    return JSON.stringify(this.inputs.length > 1 ? lists : lists[this.main.name]);
  }

  /** Outputs that attribute to something: {name: tensor}. */
  layers() {
    const { outputs } = this.answer;
    return Object.fromEntries(
      Object.values(outputs)
        .filter(({ name, shape, datatype }) => name.endsWith(SUFFIX) && shape.length > 2 && /^(FP|BF)/.test(datatype))
        .map((one) => [one.name.slice(0, -SUFFIX.length), one]),
    );
  }

  values(name) {
    return this.answer.outputs[name]?.data ?? null;
  }

  targetNames() {
    const count = this.values("explained_value")?.length ?? 1;
    const { targets } = this.model;
    const predicted = this.values(this.model.output);
    const { outputs, output, class_names: names = [] } = this.model;
    const called = (target) => `class ${String(target).split("-").map((end) => names[end] ?? end).join(" against ")}`;
    if (!Array.isArray(targets)) return [predicted ? `${called(predicted.indexOf(predicted.reduce((a, b) => Math.max(a, b))))}, which is predicted` : "the predicted class"];
    const isOne = count === 1 && size(outputs.find((one) => one.name === output)?.shape ?? [1]) === 1;
    return targets.map((one) => (isOne ? `the output ${output}` : called(one)));
  }

  /** The target that is looked at: the one chosen, else that with the largest value. */
  target() {
    const explained = Array.from(this.values("explained_value") ?? [0]);
    const { target } = this.state;
    return target !== null && target < explained.length ? target : explained.indexOf(Math.max(...explained));
  }

  redraw() {
    const layers = this.layers();
    const names = Object.keys(layers);
    if (!names.length) {
      fill(this.result, h("p", {}, "This explanation has no tensor that attributes to an input or a layer: its features are explained as groups, which the view Explain shows."));
      return;
    }
    const layer = this.state.layer !== null && Object.hasOwn(layers, this.state.layer) ? this.state.layer : names[0];
    const target = this.target();
    const called = this.targetNames();
    const explained = this.values("explained_value");
    const tensor = layers[layer];
    const count = size(tensor.shape.slice(2));
    const values = Array.from(tensor.data.slice(target * count, (target + 1) * count));
    fill(
      this.result,
      h(
        "div",
        { class: "row" },
        called.length > 1 && this.choose("What is explained", called.map((name, t) => [t, `${name}: ${number(explained?.[t])}`]), target, (t) => (this.state.target = Number(t))),
        names.length > 1 && this.choose("Where", names.map((name) => [name, this.layerName(name)]), layer, (name) => (this.state.layer = name)),
      ),
      this.facts(target, called[target], values, layer),
      this.drawn(values, tensor.shape.slice(2), layer),
    );
  }

  choose(called, options, chosen, take) {
    const name = called.replaceAll(" ", "-").toLowerCase();
    return h(
      "label",
      { class: "entry" },
      h("span", {}, called),
      h(
        "select",
        {
          name,
          onchange: (event) => {
            take(event.target.value);
            this.redraw();
            this.result.querySelector(`[name="${name}"]`)?.focus();
          },
        },
        options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
      ),
    );
  }

  layerName(name) {
    return this.model.inputs.some((input) => input.name === name) ? `the input ${name}` : `the layer ${name}`;
  }

  facts(target, called, values, layer) {
    const of = (name) => this.values(name)?.[target];
    const isInput = this.model.inputs.some((input) => input.name === layer);
    const facts = [
      ["Explained", Array.isArray(this.model.targets) && this.model.targets.length > 1 ? null : called],
      ["Its value", number(of("explained_value"))],
      ["Base value", of("base_value") === undefined ? null : number(of("base_value"))],
      ["Sum of what is shown", signed(values.reduce((sum, one) => sum + one, 0))],
      ["Gap", !isInput || of("completeness_gap") === undefined ? null : number(of("completeness_gap"))],
    ];
    return h("dl", { class: "facts" }, facts.filter(([, text]) => text !== null).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
  }

  drawn(values, shape, layer) {
    const { kind } = this.state;
    if (kind === "picture") {
      const heat = this.heat(values, shape);
      if (heat) return this.map(heat);
    }
    const ids = this.inputs.find((one) => one.name === this.main.name);
    if (kind === "words" && isWords(this.main)) {
      const perToken = summed(values, shape, ids.data.length);
      if (perToken) return this.words(Array.from(ids.data), perToken);
    }
    if (shape.length === 2) return this.map({ rows: shape[0], columns: shape[1], values }, false);
    return [h("p", { class: "quiet" }, `${number(values.length, 9)} values of ${this.layerName(layer)}, [${shape.join(", ")}].`), listed(values, shape)];
  }

  /** A map of rows and columns: channels are added up, and patches stand where they were cut. */
  heat(values, shape) {
    if (shape.length === 2 && this.main.shape.length === 3) {
      const side = [shape[0], shape[0] - 1].map(Math.sqrt).find(Number.isInteger);
      const patches = summed(values, shape, shape[0]);
      return side ? { rows: side, columns: side, values: patches.slice(-(side ** 2)) } : null;
    }
    if (shape.length === 2) return { rows: shape[0], columns: shape[1], values };
    if (shape.length !== 3) return null;
    const isInput = shape.every((n, axis) => n === this.lengths[axis]);
    const isFirst = !isInput || this.state.layout === "first"; // within a network of ONNX they always are
    const [channels, rows, columns] = isFirst ? shape : [shape[2], shape[0], shape[1]];
    const heat = Array(rows * columns).fill(0);
    values.forEach((value, i) => (heat[isFirst ? i % (rows * columns) : Math.floor(i / channels)] += value));
    return { rows, columns, values: heat };
  }

  map(places, hasPicture = true) {
    const picture = hasPicture ? this.picture() : null;
    const step = Math.ceil(Math.max(places.rows, places.columns) / MOST_REGIONS);
    const isFine = picture && step > 1;
    const heat = isFine && this.state.detail === "regions" ? regions(places, step) : places;
    const least = picture ? this.state.least / 100 : 0;
    const read = h("output", { class: "quiet" }, "");
    const place = { row: h("input", { type: "number", min: 1, max: places.rows, name: "row" }), column: h("input", { type: "number", min: 1, max: places.columns, name: "column" }) };
    const look = (row, column) => {
      [place.row.value, place.column.value] = [row + 1, column + 1];
      read.textContent = `Relevance ${signed(valueAt(heat, row, column).value)}`;
    };
    const typed = () => {
      const [row, column] = [Number(place.row.value), Number(place.column.value)];
      if (row >= 1 && row <= places.rows && column >= 1 && column <= places.columns) look(row - 1, column - 1);
      else read.textContent = "";
    };
    for (const field of Object.values(place)) field.addEventListener("input", typed);
    const slider = picture && h("input", {
      type: "range",
      min: 0,
      max: 90,
      step: 5,
      value: this.state.least,
      name: "least",
      onchange: (event) => {
        this.state.least = Number(event.target.value);
        this.redraw();
        this.result.querySelector('[name="least"]')?.focus();
      },
    });
    const drawn = heatmap(heat, picture, { least, look });
    const side = (called, ...content) => h("figure", { class: "drawn", style: { "max-inline-size": drawn.width } }, h("figcaption", {}, called), content);
    return h(
      "div",
      { class: "map" },
      picture && side("What the model sees", plain(picture, "What the model sees")),
      side("Attributions", drawn.element, legend(heat, least)),
      h(
        "div",
        { class: "drawn" },
        isFine && this.choose("Relevance of", [["regions", `regions of ${step} × ${step}`], ["places", "single places"]], this.state.detail, (detail) => (this.state.detail = detail)),
        slider && h("label", { class: "entry" }, h("span", {}, `Drawn from ${this.state.least}% of the strongest`), slider),
        h(
          "div",
          { class: "places" },
          h("label", { class: "entry" }, h("span", {}, "Row"), place.row),
          h("label", { class: "entry" }, h("span", {}, "Column"), place.column),
          read,
        ),
      ),
      h("div", {}, strongest(heat, look)),
    );
  }

  /** The picture as the model sees it, from its numbers: the smallest is dark, the largest is light. */
  picture() {
    const { data } = this.inputs.find((one) => one.name === this.main.name);
    const { rows, columns, channels } = this.frame();
    if (rows * columns * channels !== data.length || ![1, 3, 4].includes(channels)) return null;
    const image = new ImageData(columns, rows);
    const { mean, deviation } = this.image ? this.scaling(channels) : rangeOf(data, channels);
    for (let at = 0; at < rows * columns; at += 1) {
      for (let c = 0; c < 3; c += 1) {
        const own = channels === 1 ? 0 : c;
        const share = data[this.place(at, own, rows * columns, channels)] * deviation[own] + mean[own];
        image.data[4 * at + c] = Math.round(255 * share);
      }
      image.data[4 * at + 3] = 255;
    }
    return image;
  }

  words(ids, values) {
    const shown = Math.min(ids.length, MOST_WORDS);
    const texts = ids.slice(0, shown).map((id) => words.spelled(id, this.state.words));
    const quiet = texts.map((_, i) => Boolean(this.padding) && i >= this.padding);
    const most = largest(values);
    return [
      tokens(texts, values, { quiet }),
      shown < ids.length && h("p", { class: "quiet" }, `The first ${shown} of ${ids.length} tokens.`),
      h("p", { class: "quiet" }, `Full colour stands for ${signed(most)} or ${signed(-most)}. A whole line below a token says that it raises the value, a dashed one that it lowers it.`),
    ];
  }
}

// --- numbers ----------------------------------------------------------------------------------------------

function layoutOf(shape) {
  return shape.length === 3 && ![1, 3, 4].includes(shape[0]) && [1, 3, 4].includes(shape[2]) ? "last" : "first";
}

const defaults = (name) => ({ from: [0], to: [1], mean: [0], deviation: [1] })[name];
const pickOne = (all, c) => all[Math.min(c, all.length - 1)];
const fillUp = (all, count) => Array.from({ length: count }, (_, c) => pickOne(all, c));

/** "from:0.to:16" of the address → {from: [0], to: [16]}. */
function own(text = "") {
  const found = {};
  for (const part of text.split(/\.(?=[a-z])/)) {
    const [name, all = ""] = part.split(":");
    const given = all.split("_").filter(Boolean).map(Number);
    if (defaults(name) && given.length && given.every(Number.isFinite)) found[name] = given;
  }
  return found;
}

/** By which numbers become shares of light: the inverse of a scaling, over the range that they have. */
function rangeOf(data, channels) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of data) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const width = high - low || 1;
  return { mean: Array(channels).fill(-low / width), deviation: Array(channels).fill(1 / width) };
}

/** The sum of all that belongs to each of `count` places of the first axis; null where there are not so many. */
function summed(values, shape, count) {
  if (shape[0] !== count) return null;
  const each = values.length / count;
  return Array.from({ length: count }, (_, i) => values.slice(i * each, (i + 1) * each).reduce((sum, one) => sum + one, 0));
}

function nested(values, shape) {
  if (shape.length < 2) return shape.length ? values : values[0];
  const each = values.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => nested(values.slice(i * each, (i + 1) * each), shape.slice(1)));
}

const rounded = (value) => (typeof value === "number" ? Math.round(value / ROUNDING) * ROUNDING && Number(value.toPrecision(7)) : value);

/** A picture on a canvas of the model's size, as ImageData. */
function scaled(image, rows, columns, fit) {
  const canvas = new OffscreenCanvas(columns, rows);
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  drawing.imageSmoothingQuality = "high";
  drawing.fillStyle = "#000"; // beside and behind the picture
  drawing.fillRect(0, 0, columns, rows);
  const [across, down] = [columns / image.width, rows / image.height];
  const by = fit === "crop" ? Math.max(across, down) : Math.min(across, down);
  const [width, height] = fit === "whole" ? [columns, rows] : [image.width * by, image.height * by];
  drawing.drawImage(image, (columns - width) / 2, (rows - height) / 2, width, height);
  return drawing.getImageData(0, 0, columns, rows);
}
