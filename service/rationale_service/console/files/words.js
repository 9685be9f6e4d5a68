// A text as the numbers of its tokens, by a vocabulary that is read in the page; it is sent nowhere.

const SPECIAL = {
  begin: ["[CLS]", "<s>", "<|begin_of_text|>"],
  end: ["[SEP]", "</s>"],
  pad: ["[PAD]", "<pad>"],
  unknown: ["[UNK]", "<unk>"],
};
const MARKS = ["\u2581", "\u0120"]; // of a word's beginning: SentencePiece's and byte-level BPE's
const LONGEST = 200_000; // tokens

/** What a vocabulary file says: one token a line, {"token": id}, or a tokenizer.json. Throws an Error. */
export function vocabulary(text) {
  const ids = text.trimStart().startsWith("{") ? ofJson(text) : ofLines(text);
  if (!ids.size) throw new Error("the file holds no tokens");
  if (ids.size > LONGEST) throw new Error(`the file holds ${ids.size} tokens, and ${LONGEST} are the most`);
  const tokens = new Map([...ids].map(([token, id]) => [id, token]));
  const one = (kind) => SPECIAL[kind].map((token) => ids.get(token)).find((id) => id !== undefined);
  const names = [...ids.keys()];
  const specials = new Set(Object.values(SPECIAL).flat());
  const bare = names.filter((token) => !specials.has(token)).map((token) => token.replaceAll(MARKS[1], "")); // a capital letter itself
  return {
    ids,
    tokens,
    size: ids.size,
    mark: MARKS.find((mark) => names.some((token) => token.startsWith(mark) && token.length > 1)) ?? "",
    isWordPiece: names.some((token) => token.startsWith("##")),
    isLower: bare.every((token) => token === token.toLowerCase()),
    begin: one("begin"),
    end: one("end"),
    pad: one("pad"),
    unknown: one("unknown"),
  };
}

function ofLines(text) {
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === "") lines.pop();
  return new Map(lines.map((token, id) => [token, id]));
}

function ofJson(text) {
  const file = JSON.parse(text);
  const found = file.model?.vocab ?? file;
  const pairs = Array.isArray(found) ? found.map(([token], id) => [token, id]) : Object.entries(found);
  const added = (file.added_tokens ?? []).map((one) => [one.content, one.id]);
  const ids = new Map([...pairs, ...added]);
  const wrong = [...ids].find(([token, id]) => typeof token !== "string" || !Number.isInteger(id) || id < 0);
  if (wrong) throw new Error('the file must be {"token": number, …}, a tokenizer.json, or one token a line');
  return ids;
}

/** The numbers of a text's tokens: the longest token that fits comes next. Throws where one is in no vocabulary. */
export function encode(text, words) {
  const given = words.isLower ? text.toLowerCase() : text;
  const found = words.mark ? pieces(words.mark + given.trim().replaceAll(/\s+/g, words.mark), words, "") : ofWords(given, words);
  return [words.begin, ...found, words.end].filter((id) => id !== undefined);
}

function ofWords(text, words) {
  const parts = text.match(/[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
  return parts.flatMap((part) => {
    if (!words.isWordPiece) return [words.ids.get(part) ?? unknown(part, words)];
    try {
      return pieces(part, { ...words, unknown: undefined }, "##");
    } catch {
      return [unknown(part, words)];
    }
  });
}

/** `inner` stands before a token that does not begin a word. */
function pieces(text, words, inner) {
  const found = [];
  for (let at = 0; at < text.length; ) {
    const before = at && inner ? inner : "";
    let end = text.length;
    while (end > at && !words.ids.has(before + text.slice(at, end))) end -= 1;
    if (end === at) {
      found.push(unknown(text[at], words));
      at += 1;
    } else {
      found.push(words.ids.get(before + text.slice(at, end)));
      at = end;
    }
  }
  return found;
}

function unknown(part, words) {
  if (words.unknown !== undefined) return words.unknown;
  throw new Error(`“${part}” is in no token of the vocabulary, which has none for what is unknown`);
}

/** What a token's number reads as. */
export function spelled(id, words) {
  const token = words?.tokens.get(id);
  if (token === undefined) return `#${id}`;
  const plain = words.mark ? token.replaceAll(words.mark, " ").trim() : token;
  return plain === "" ? "␣" : plain;
}

/** "101, 7 8" → [101, 7, 8]. Throws an Error. */
export function numbers(text) {
  const parts = text.replaceAll(/[[\](){}]/g, " ").split(/[\s,;]+/).filter(Boolean);
  const wrong = parts.find((part) => !/^-?\d{1,15}$/.test(part));
  if (wrong !== undefined) throw new Error(`“${wrong}” is no token's number: write whole numbers, such as 101, 2023, 102`);
  return parts.map(Number);
}
