// A worker that reads a file: the page stays awake meanwhile.

import { Fault, readRows } from "../csv.js";
import { MOST_ROWS, checkSize, columnsOf } from "./columns.js";

const EVERY_MS = 100;

self.onmessage = async ({ data: { file, texts } }) => {
  let reported = 0;
  const progress = (rows) => {
    if (performance.now() - reported < EVERY_MS) return;
    reported = performance.now();
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

/** Read a file (a Blob). `progress` is called with the rows so far. Returns {columns, rows, isCut}. */
async function readCsv(file, texts, progress) {
  let columns;
  let rows = 0;
  let isCut = false;
  const add = (fields) => {
    if (rows === MOST_ROWS) {
      isCut = true;
      return false;
    }
    for (let i = 0; i < fields.length; i++) columns[i].add(fields[i]);
    rows++;
    if (rows % 4096 === 0) checkSize(columns, rows);
    return true;
  };
  const begin = (names) => {
    columns = columnsOf(names, texts);
    return add;
  };
  await readRows(file, begin, progress);
  return { columns: columns.map((column) => column.finished()), rows, isCut };
}
