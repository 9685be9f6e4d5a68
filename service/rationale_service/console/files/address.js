// What is looked at stands in the address behind its "#", so that it can be sent; no browser tells a server that part.

/** "#explain?model=credit&row=…" → {view, model, explainer, digest, row, …}: texts, empty where absent. */
export function read() {
  const [view, query = ""] = split(location.hash.slice(1));
  return { view, ...Object.fromEntries(new URLSearchParams(query)) };
}

/** The address with some members changed (empty or undefined: left out), to be put in a link. */
export function changed(changes) {
  const { view, ...others } = { ...read(), ...changes };
  const query = new URLSearchParams(Object.entries(others).filter(([, value]) => value));
  return `#${view}${query.size ? `?${query}` : ""}`;
}

/** Change the address; with `replace` (the default) nothing is shown anew and no step is added to the history. */
export function go(changes, { replace = true } = {}) {
  const next = changed(changes);
  if (replace) history.replaceState(null, "", next);
  else location.hash = next;
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
