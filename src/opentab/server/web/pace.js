// Events a second, from how the count of all events moves on.

const KEPT_MS = 120_000;
const WINDOW_MS = 10_000;

/** Counts that were seen, with when. */
export class Pace {
  #seen = []; // {at, events}, in order

  /** The count of all events is this now. */
  see(events, at = Date.now()) {
    const last = this.#seen.at(-1);
    // A ledger that was restored counts anew.
    if (last && events < last.events) this.#seen = [];
    this.#seen.push({ at, events });
    while (this.#seen.length > 2 && this.#seen[1].at < at - KEPT_MS) this.#seen.shift();
  }

  /** What batches of a moment ago tell, before anything was seen here. */
  seed(batches, events) {
    if (this.#seen.length > 1) return;
    let count = events - batches.reduce((sum, batch) => sum + batch.events, 0);
    const past = batches.map((batch) => ({ at: Date.parse(batch.committed_at), events: (count += batch.events) }));
    this.#seen = [...past.filter((each) => each.at <= Date.now()), ...this.#seen];
  }

  /** Events a second over the last seconds, up to now. */
  get rate() {
    const now = Date.now();
    return Math.max(0, (this.#at(now) - this.#at(now - WINDOW_MS)) / (WINDOW_MS / 1000));
  }

  /** The same for each of the last so many seconds. */
  bySecond(seconds) {
    const now = Math.floor(Date.now() / 1000) * 1000;
    return Array.from({ length: seconds }, (_, n) => {
      const to = now - (seconds - 1 - n) * 1000;
      return Math.max(0, this.#at(to) - this.#at(to - 1000));
    });
  }

  #at(moment) {
    let found = this.#seen[0]?.events ?? 0;
    for (const each of this.#seen) {
      if (each.at > moment) break;
      found = each.events;
    }
    return found;
  }
}
