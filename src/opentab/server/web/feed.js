// Live numbers: server-sent events that come back by themselves; where streams are blocked, a question every 2 s.

import { Refused } from "./api.js";
import { now } from "./ticker.js";

const QUIET_MS = 3000; // a stream says every second that it lives
const POLL_MS = 2000;
const REOPEN_MS = 15_000;
const LOOK_MS = 250;

/**
 * Follow a stream until the signal ends it.
 * `message` gets the whole state, `pulse` how fresh it is, `link` how we are connected: stream, polling or lost.
 */
export function follow({ stream, poll, message, pulse, link, signal }) {
  let source = null, opened = now(), heard = now(), polled = now(), polling = false, state = null;

  const become = (next) => {
    if (state !== next) link((state = next));
  };
  const take = (event, give) => {
    heard = now();
    become("stream");
    give(JSON.parse(event.data));
  };
  const open = () => {
    close();
    opened = now();
    source = new EventSource(stream);
    source.addEventListener("totals", (event) => take(event, message));
    source.addEventListener("pulse", (event) => take(event, pulse));
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const ask = async () => {
    polling = true;
    polled = now();
    try {
      const found = await poll(signal);
      if (state !== "stream" || heard.elapsed() > QUIET_MS) {
        become("polling");
        message(found);
      }
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof Refused && error.status < 500)) become("lost");
    }
    polling = false;
  };
  const look = () => {
    if (document.hidden) return;
    // It closes for good where the server answers with an error, and may be held up by what lies between.
    const closed = source === null || source.readyState === EventSource.CLOSED;
    if (opened.elapsed() > (closed ? POLL_MS : REOPEN_MS) && heard.elapsed() > QUIET_MS) open();
    if (heard.elapsed() > QUIET_MS && polled.elapsed() > POLL_MS && !polling) ask();
  };
  const turn = () => {
    // Browsers allow few connections to a host: nobody looks at a hidden page.
    if (document.hidden) close();
    else open();
  };

  open();
  const timer = setInterval(look, LOOK_MS);
  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => {
    clearInterval(timer);
    close();
  });
}
