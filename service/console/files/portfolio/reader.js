// A worker that reads a file: the page stays awake meanwhile.

import { Fault } from "./columns.js";
import { readCsv } from "./csv.js";

const EVERY_MS = 100;

self.onmessage = async ({ data: { file, texts } }) => {
  let told = 0;
  const progress = (rows) => {
    if (performance.now() - told < EVERY_MS) return;
    told = performance.now();
    self.postMessage({ rows });
  };
  try {
    const magic = new TextDecoder().decode(await file.slice(0, 4).arrayBuffer());
    const read = magic === "PAR1" ? (await import("./parquet.js")).readParquet : readCsv; // thirty files
    const table = await read(file, new Set(texts), progress);
    self.postMessage({ table }, table.columns.map((column) => (column.values ?? column.codes).buffer));
  } catch (error) {
    const reason = error instanceof Fault ? error.message : `The file cannot be read (${error.message}).`;
    self.postMessage({ reason });
  }
};
