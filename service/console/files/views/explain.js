import { h } from "../dom.js";

export const title = "Explain";

export async function show(root, address, context) {
  root.append(h("h1", {}, title, " ", context.model.model));
}
