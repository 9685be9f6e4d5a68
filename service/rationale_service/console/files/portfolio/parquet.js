// Parquet by hyparquet: whole columns, without a loop over rows of objects.

import { Fault, checkNames } from "../csv.js";
import { decompress } from "../vendor/fzstd/index.js";
import { parquetMetadataAsync, parquetRead, parquetSchema } from "../vendor/hyparquet/index.js";
import { MOST_ROWS, checkSize, columnsOf } from "./columns.js";

const COMPRESSORS = { ZSTD: (bytes) => decompress(bytes) };

/** Read a file (a Blob); as `readCsv`. */
export async function readParquet(file, texts, progress) {
  const source = {
    byteLength: file.size,
    slice: (from, to) => file.slice(from, to).arrayBuffer(),
  };
  try {
    return await read(source, texts, progress);
  } catch (error) {
    if (error instanceof Fault) throw error;
    throw new Fault(`The parquet file cannot be read here (${error.message}). Write it with snappy or zstd, or as CSV.`);
  }
}

async function read(source, texts, progress) {
  const metadata = await parquetMetadataAsync(source);
  const all = Number(metadata.num_rows);
  const rows = Math.min(all, MOST_ROWS);
  if (rows === 0) throw new Fault("The file holds no rows.");
  const flat = parquetSchema(metadata).children.filter((child) => child.children.length === 0);
  const names = flat.map((child) => child.element.name);
  checkNames(names);
  const columns = columnsOf(names, texts);
  checkSize(columns, rows);
  for (const [i, column] of columns.entries()) {
    await readColumn(source, metadata, column, rows);
    progress(Math.round(((i + 1) / columns.length) * rows));
  }
  return { columns: columns.map((column) => column.finished()), rows, isCut: all > rows };
}

async function readColumn(source, metadata, column, rows) {
  const parts = [];
  await parquetRead({
    file: source,
    metadata,
    columns: [column.name],
    rowEnd: rows,
    compressors: COMPRESSORS,
    onChunk: (chunk) => parts.push(chunk),
  });
  parts.sort((a, b) => a.rowStart - b.rowStart);
  for (const { columnData, rowStart } of parts) {
    for (let i = 0; i < columnData.length && rowStart + i < rows; i++) add(column, columnData[i]);
  }
  if (column.length !== rows) throw new Fault(`Column "${column.name}" holds ${column.length} values, not ${rows}.`);
}

function add(column, value) {
  if (typeof value === "number") column.addNumber(value);
  else if (typeof value === "bigint") column.addNumber(Number(value));
  else if (value === null || value === undefined) column.add("");
  else if (typeof value === "boolean") column.addNumber(Number(value));
  else if (typeof value === "string") asText(column, value);
  else if (value instanceof Date) asText(column, value.toISOString());
  else throw new Fault(`Column "${column.name}" holds neither numbers nor words.`);
}

function asText(column, word) {
  if (column.values !== null) column.becomeText();
  column.addWord(word);
}
