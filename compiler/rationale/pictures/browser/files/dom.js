// Elements made in code. Every text is set as text: no name or value of a model's can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: attributes by name (functions as "onclick" are listeners, `style` an object), then children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put these in the place of all that an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children, element));
  return element;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  element.append(...nodes(children, element));
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} must be a function`);
    element.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [property, each] of Object.entries(value)) element.style.setProperty(property, each);
  } else if (name === "value" && "value" in element) {
    element.value = value;
  } else if (name === "href" || name === "src") {
    if (!/^(#|\?|blob:|data:image\/png|[\w./-]+$)/.test(value)) throw new TypeError(`${name} leads elsewhere`);
    element.setAttribute(name, value);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function* nodes(children, element) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    if (child instanceof Node) yield child;
    else if (element.namespaceURI === SVG || element.tagName === "OPTION") yield visible(String(child));
    else yield* breakable(visible(String(child))).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
  }
}

/** The parts of a text between which a line may break: names are long, and their words are not to be cut. */
export const breakable = (text) => text.split(/(?<=_)(?=[^_])/);

// Characters that are not seen, or turn the ones behind them round, so that a name reads as another one.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A text as it is, with such characters by their number. */
export const visible = (text) => text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
