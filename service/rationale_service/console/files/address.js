// What is looked at stands in the address behind its "#", so that it can be sent; no browser tells a server that part.

/** "#explain?model=credit&row=…" → {view, model, explainer, digest, row, …}: texts, empty where absent. */
export const read = () => parsed(location.hash).at;

/** Whether all of the address arrived that this page once wrote. */
export const isWhole = () => parsed(location.hash).isWhole;

/** {at, isWhole} of a text behind the "#". */
export function parsed(hash) {
  const [view, query] = split(hash.replace(/^#/, ""));
  const { check, ...members } = Object.fromEntries(new URLSearchParams(query));
  const at = { view, ...members };
  return { at, isWhole: check === undefined ? query === undefined || "model" in members : check === sum(at) };
}

/** The address of these members (empty or undefined: left out); its check stands first, so that a cut leaves it there. */
export function written({ view, ...others }) {
  const members = Object.fromEntries(Object.entries(others).filter(([, value]) => value).map(([name, value]) => [name, String(value)]));
  const query = new URLSearchParams({ check: sum({ view, ...members }), ...members });
  return `#${view}${query.size > 1 ? `?${query}` : ""}`;
}

/** The address with some members changed, to be put in a link. */
export const changed = (changes) => written({ ...read(), ...changes });

/** Change the address; nothing is shown anew. With `step`, the browser's Back leads to the address as it was. */
export function go(changes, { step = false } = {}) {
  history[step ? "pushState" : "replaceState"](null, "", changed(changes));
}

/** FNV-1a of 32 bits. */
function sum(at) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(JSON.stringify(Object.entries(at)))) hash = Math.imul(hash ^ byte, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
