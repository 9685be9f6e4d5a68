import { h } from "../dom.js";

export const title = "References";

/** Why there is nothing to see for this model; empty where there is. */
export function unavailable(model) {
  return "This view is not made yet.";
}

export async function show(root, address, context) {
  root.append(h("h1", {}, title));
}
