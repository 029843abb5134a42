// One clock for all that grows old on the page.

const EVERY_MS = 250;
const listeners = new Set();
let timer;

/** Call a function four times a second until the signal ends it; ages move on though nothing comes in. */
export function everyTick(listener, signal) {
  listeners.add(listener);
  timer ??= setInterval(() => listeners.forEach((each) => each()), EVERY_MS);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/** A moment, to be asked later how long ago it was: also if the machine slept, or its clock was set. */
export function now() {
  const wall = Date.now(), steady = performance.now();
  return { elapsed: () => Math.max(0, Date.now() - wall, performance.now() - steady) };
}
