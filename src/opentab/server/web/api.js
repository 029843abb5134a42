// Questions to the server.

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Whoever wants to know that the token is no good any more. */
export const refusals = new EventTarget();

/** An answer as data. Raises Refused with the server's own words, or a TypeError where it is not reached. */
export async function get(path, signal) {
  const answer = await fetch(path, { signal, headers: { accept: "application/json" } });
  return read(answer);
}

/** The same, but nothing where nothing was billed. */
export async function getIfThere(path, signal) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  }
}

/** A path whose parts may hold any text, and what is asked besides. */
export function path(parts, query = {}) {
  const asked = new URLSearchParams(query).toString();
  return `/${parts.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

async function read(answer) {
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  if (answer.status === 401) refusals.dispatchEvent(new Event("refused"));
  throw new Refused(answer.status, body.detail ?? answer.statusText);
}

let turn = Promise.resolve();

/** Ask again and again for something that others change, but not too often; one question at a time, whoever asks. */
export class Refreshed {
  #busy = false;
  #again = false;
  #last = -Infinity;

  constructor(ask, { pauseMs, signal }) {
    this.ask = ask;
    this.pauseMs = pauseMs;
    this.signal = signal;
  }

  /** There may be something new. */
  async wanted() {
    this.#again = true;
    if (this.#busy) return;
    this.#busy = true;
    while (this.#again && !this.signal.aborted) {
      const wait = this.#last + this.pauseMs - performance.now();
      if (wait > 0) await new Promise((done) => setTimeout(done, wait));
      this.#again = false;
      this.#last = performance.now();
      try {
        const mine = turn.then(() => this.signal.aborted || this.ask());
        turn = mine.catch(() => {});
        await mine;
      } catch (error) {
        if (error.name === "AbortError" || (error instanceof Refused && error.status !== 429)) continue;
        this.#again = true; // not reached, or too many at once: once more, after the pause
      }
    }
    this.#busy = false;
  }
}
