// Many rows by few requests at once, each as large as the gateway answers in a moment.

const AT_ONCE = 3;
const FIRST = 256; // and the fewest, unless that is too much: fewer would wait as long for their turn
const LEAST = 1;
const MOST = 4000;
const AIM_S = 0.4; // for one request: often enough for progress, seldom enough for speed
const LONGEST_WAIT_S = 60;
const MOST_TRIES = 20;
const TOO_MUCH = new Set([413, 504]); // fewer rows may do
const LATER = new Set([0, 429, 503]); // 0: the connection

/**
 * Explain `total` rows in their order.
 *
 * send(from, to, signal) → Promise<Response> or a Problem; decode(response) → Promise<answer>;
 * take(answer, from, count) is called in order of `from`. Throws Problem for a refusal, the signal's reason
 * where that says so.
 */
export async function ask({ total, send, decode, take, signal }) {
  const stop = new AbortController();
  const abort = () => stop.abort(signal.reason);
  signal.addEventListener("abort", abort);
  if (signal.aborted) abort();
  const waiting = new Map(); // answers that came before an earlier one
  let next = 0;
  let taken = 0;
  let size = Math.min(FIRST, Math.max(total, 1));
  let fewest = FIRST;
  let resting = Promise.resolve();

  function settle() {
    for (let answer = waiting.get(taken); answer; answer = waiting.get(taken)) {
      waiting.delete(taken);
      take(answer.answer, taken, answer.count);
      taken += answer.count;
    }
  }

  async function part(from, to, tries = 0) {
    await resting;
    const began = performance.now();
    try {
      const answer = await decode(await send(from, to, stop.signal));
      waiting.set(from, { answer, count: to - from });
      const seconds = (performance.now() - began) / 1000;
      size = Math.round(clamp(size * clamp(AIM_S / seconds, 0.5, 2), fewest, MOST));
      settle();
    } catch (error) {
      if (stop.signal.aborted) throw error;
      await again(error, from, to, tries);
    }
  }

  async function again(error, from, to, tries) {
    if (TOO_MUCH.has(error.status) && to - from > LEAST) {
      const half = Math.max(Math.floor((to - from) / 2), LEAST);
      size = half;
      fewest = Math.min(fewest, half);
      await part(from, from + half);
      await part(from + half, to);
    } else if (LATER.has(error.status) && tries < MOST_TRIES) {
      resting = rest(Math.min(error.retryAfter ?? 2 ** tries * 0.25, LONGEST_WAIT_S), stop.signal);
      await part(from, to, tries + 1); // as all lanes, after the rest: they ask the same gateway
    } else {
      throw error;
    }
  }

  async function lane() {
    while (next < total && !stop.signal.aborted) {
      const from = next;
      next = Math.min(next + size, total);
      await part(from, next);
    }
    stop.signal.throwIfAborted();
  }

  try {
    await Promise.all(Array.from({ length: AT_ONCE }, lane));
  } catch (error) {
    stop.abort(error);
    throw error;
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

function rest(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
