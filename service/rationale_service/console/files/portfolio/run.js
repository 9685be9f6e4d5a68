// From a file to explained rows: read, bound to the model, asked for in batches.

import { send } from "../api.js";
import { ask } from "./asking.js";
import { Fault } from "../csv.js";
import { Portfolio, layoutOf } from "./portfolio.js";
import { Explained, bind, decode, encode, usable } from "./tensors.js";

const MOST_WIDTH = 1000; // features of an input that is a table's

/** Return why rows of the model are no table; empty where they are. */
export function noTable(model) {
  const odd = model.inputs.find((input) => {
    const size = input.shape.reduce((product, each) => product * each, 1);
    return size < 1 || size > MOST_WIDTH || (input.features === undefined && size !== 1);
  });
  return odd ? `The rows of ${model.model} are no table: its input ${odd.name} has no columns with names.` : "";
}

/** Read a file in a worker: {columns, rows, isCut}. `progress` is called with the rows so far. */
export function read(file, model, progress, signal) {
  const texts = model.inputs.filter((input) => input.datatype === "BYTES").flatMap((input) => input.features ?? [input.name]);
  const worker = new Worker(new URL("./reader.js", import.meta.url), { type: "module" });
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    worker.onmessage = ({ data }) => {
      if (data.rows !== undefined) progress(data.rows);
      else if (data.table) resolve(data.table);
      else reject(new Fault(data.reason));
    };
    worker.onerror = () => reject(new Fault("The part of this page that reads files did not start: load the page again."));
    worker.postMessage({ file, texts });
  }).finally(() => worker.terminate());
}

/** Bind a table to the model. Returns {portfolio, start}. */
export function prepare(name, table, model, target) {
  const layout = layoutOf(model);
  const bound = bind(layout, table.columns);
  const { rows, lacking } = usable(bound, table.rows);
  if (!rows.length) throw new Fault(`No row has all values that the model needs: ${lacked(lacking)}.`);
  const parameters = model.explainer ? { explainer: model.explainer } : {};
  const path = `v2/models/${encodeURIComponent(model.model)}/explain`;
  const portfolio = new Portfolio({ name, table, layout, rows, target, features: model, left: { rows: table.rows - rows.length, lacking } });
  const outputs = Explained.outputs(layout);
  const start = (took, stop) =>
    ask({
      total: rows.length,
      signal: stop,
      decode,
      send: (from, to, each) =>
        send(path, { method: "POST", signal: each, ...encode(bound, rows, from, to, { outputs, parameters }) }),
      take: (answer, from, count) => {
        portfolio.explained.take(answer, from, count);
        took(portfolio.n);
      },
    });
  return { portfolio, start };
}

export function lacked(lacking) {
  return [...lacking].map(([name, count]) => `${count.toLocaleString("en")} lack ${name}`).join(", ");
}

/** Wait until the page has been painted, and has answered its user. */
export const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
