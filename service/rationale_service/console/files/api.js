// The gateway's API, asked with the caller's key. The page lies at …/console/, the API beside it.

const ROOT = new URL("../", document.baseURI);
const KEY = "rationale.key"; // of this tab alone; gone when it is closed

/** What the gateway answers in place of a result: a problem document (RFC 9457). */
export class Problem extends Error {
  constructor(status, title, detail, { retryAfter = null, scope = null } = {}) {
    super(detail || title);
    Object.assign(this, { name: "Problem", status, title, detail, retryAfter, scope });
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";

/** Keep a key for this tab; empty forgets it. Throws where it can be none. */
export function keep(given) {
  const text = given.trim();
  if (!/^[!-~]*$/.test(text)) throw new Problem(0, "Not a key", "a key is made of letters, digits and signs, without spaces");
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** Ask a path such as "v1/models"; returns the Response of a success. Throws Problem, or AbortError. */
export async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const request = { method, headers: { ...headers }, signal, credentials: "same-origin", redirect: "error" };
  if (key()) request.headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) request.body = body;
  let response;
  try {
    response = await fetch(new URL(path, ROOT), request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not answer", "is it running, and is the network there?");
  }
  if (!response.ok) throw await problem(response);
  return response;
}

export const get = async (path, options = {}) => (await send(path, options)).json();

export async function post(path, message, options = {}) {
  const headers = { "Content-Type": "application/json", ...options.headers };
  const response = await send(path, { ...options, method: "POST", headers, body: JSON.stringify(message) });
  return response.json();
}

async function problem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // of a proxy between: it has its own pages
  }
  const challenge = response.headers.get("WWW-Authenticate") ?? "";
  return new Problem(response.status, body.title ?? response.statusText ?? "Failed", body.detail ?? "", {
    retryAfter: Number(response.headers.get("Retry-After")) || null,
    scope: /scope="([^"]*)"/.exec(challenge)?.[1] ?? null,
  });
}

const of = (model, verb = "") => `v1/models/${encodeURIComponent(model)}${verb}`;

/** {models: [name], explainable: [name]} */
export const models = (options) => get("v1/models", options);

/** What a form for the model needs to know: see the operation v1_features of /docs. */
export const features = (model, explainer, { language, ...options } = {}) => {
  const asked = Object.entries({ explainer, language }).filter(([, value]) => value);
  return get(of(model, "/features") + (asked.length ? `?${new URLSearchParams(asked)}` : ""), options);
};

/** v1's explanations of rows; `more` has explainer, reference_set, references. */
export const explain = (model, rows, more = {}, options = {}) =>
  post(of(model, ":explain"), { instances: rows, ...more }, options);

export const predict = (model, rows, options = {}) => post(of(model, ":predict"), { instances: rows }, options);

export const decide = (model, rows, more = {}, options = {}) =>
  post(of(model, ":decide"), { instances: rows, ...more }, options);

/** Ask again while the gateway makes what answers, or has too much to do (503, 429 with Retry-After). */
export async function patiently(ask, { times = 20, signal } = {}) {
  for (let i = 0; ; i += 1) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Problem) || ![429, 503].includes(error.status) || !error.retryAfter || i >= times) throw error;
      await pause(error.retryAfter * 1000, signal);
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/**
 * One request in flight; of those asked meanwhile the last one is sent next, the others are superseded.
 * So what was asked last is always answered, however fast a slider moves.
 */
export class Latest {
  counts = { asked: 0, answered: 0, superseded: 0, failed: 0 };
  #waiting = null;
  #running = false;

  /** `run(question)` asks, `shown(answer, question)` takes the answer, `failed(error, question)` what else comes. */
  constructor(run, shown, failed) {
    Object.assign(this, { run, shown, failed });
  }

  ask(question) {
    this.counts.asked += 1;
    if (this.#waiting !== null) this.counts.superseded += 1;
    this.#waiting = { question };
    if (!this.#running) this.#pump();
  }

  async #pump() {
    this.#running = true;
    while (this.#waiting !== null) {
      const { question } = this.#waiting;
      this.#waiting = null;
      try {
        const answer = await this.run(question);
        this.counts.answered += 1;
        this.shown(answer, question);
      } catch (error) {
        this.counts.failed += 1;
        if (error.name !== "AbortError") this.failed(error, question);
      }
    }
    this.#running = false;
  }
}
