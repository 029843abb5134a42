// What a screen reader says of its own accord: rarely, and only the newest.

const PAUSE_MS = 10_000;
let last = -Infinity, waiting = null, timer = null;

/** Say something at once. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Say something soon; of what comes meanwhile only the newest is said. */
export function announceSoon(text) {
  waiting = text;
  if (timer !== null) return;
  timer = setTimeout(() => {
    timer = null;
    last = performance.now();
    announce(waiting);
  }, Math.max(0, last + PAUSE_MS - performance.now()));
}
