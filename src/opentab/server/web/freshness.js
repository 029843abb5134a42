// How old the numbers are: green only if the server was reached and the pipeline behind it is alive.

import { el, mark, say } from "./dom.js";
import { announce } from "./announcer.js";
import { everyTick, now } from "./ticker.js";
import { ago, clock } from "./words.js";

/** Older than this is not fresh. The pipeline says every second that it lives, and the server as often. */
export const FRESH_MS_MAX = 4500;

/** What is known of the age of some numbers. */
export class Freshness {
  #staleness = null;
  #heard = null;
  link = "connecting"; // or: stream, polling, lost

  /** Take note of what a message says of its own age. */
  hear(message) {
    this.#staleness = message.staleness_ms;
    this.#heard = now();
  }

  /** Milliseconds since the numbers were known to be right; null if that is not known. */
  age() {
    return this.#heard === null || this.#staleness === null ? null : this.#staleness + this.#heard.elapsed();
  }

  /** Milliseconds since the server was heard. */
  silence() {
    return this.#heard === null ? null : this.#heard.elapsed();
  }

  get reached() {
    const silence = this.silence();
    return silence !== null && silence <= FRESH_MS_MAX;
  }

  get state() {
    if (this.#heard === null) return this.link === "lost" ? "stale" : "waiting";
    const age = this.age();
    return this.reached && age !== null && age <= FRESH_MS_MAX ? "fresh" : "stale";
  }

  /** In words, and why. */
  words() {
    if (this.#heard === null) return this.link === "lost" ? "no connection to the server" : "connecting";
    const age = this.age();
    if (age === null) return "no pipeline has run here yet";
    const said = `as of ${ago(age)}`;
    if (this.state === "fresh") return said;
    return `${said}: ${this.reached ? "the pipeline is silent" : "no connection to the server"}`;
  }
}

/** A timestamp that is green while the numbers are fresh and red when they are not; it says so in words. */
export function stamp(freshness, signal, what) {
  const label = el("strong", { class: "stamp-state" }), at = el("time", { class: "stamp-at" }), words = el("span", { class: "stamp-words" });
  const node = el("p", { class: "stamp" }, el("span", { class: "dot", "aria-hidden": "true" }), label, at, words);
  let before = null;
  const draw = () => {
    const { state } = freshness, age = freshness.age();
    mark(node, "data-state", state);
    say(label, { fresh: "Live", stale: "Not live", waiting: "Waiting" }[state]);
    say(at, age === null ? "" : clock(Date.now() - age));
    say(words, freshness.words());
    if (before !== null && before !== state) announce(`${what}: ${label.textContent}, ${freshness.words()}`);
    before = state;
  };
  draw();
  everyTick(draw, signal);
  return node;
}
