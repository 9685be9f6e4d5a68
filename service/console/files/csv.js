// Comma-separated values (RFC 4180), also with semicolons or tabs, as spreadsheets write them.

/** {columns: [name], rows: [[text]]}. Throws an Error that says what to mend. */
export function parse(text) {
  const lines = [...records(text.replace(/^\uFEFF/, ""), separator(text))];
  if (lines.length < 2) throw new Error("the file needs a line of column names, and a line for each row");
  const [columns, ...rows] = lines;
  const odd = rows.findIndex((row) => row.length !== columns.length);
  if (odd >= 0) throw new Error(`row ${odd + 1} has ${rows[odd].length} values, but there are ${columns.length} columns`);
  const twice = columns.find((name, i) => columns.indexOf(name) !== i);
  if (twice !== undefined) throw new Error(`the column ${twice} is there twice`);
  return { columns, rows };
}

function separator(text) {
  const head = text.slice(0, text.search(/[\r\n]|$/));
  return [",", ";", "\t"].map((each) => [head.split(each).length, each]).sort((a, b) => b[0] - a[0])[0][1];
}

function* records(text, between) {
  let row = [];
  let field = "";
  let quoted = false;
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') field += text[(i += 1)];
      else quoted = false;
    } else if (c === '"' && field === "") quoted = true;
    else if (c === between) {
      row.push(field);
      field = "";
    } else if (c === "\n" || c === "\r") {
      if (c === "\r" && text[i + 1] === "\n") i += 1;
      if (row.length || field) yield [...row, field];
      row = [];
      field = "";
    } else field += c;
  }
  if (quoted) throw new Error("a quoted value has no end");
  if (row.length || field) yield [...row, field];
}
