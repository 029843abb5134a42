// What managers and operators watch: one stream for both views.

import { get } from "./api.js";
import { follow } from "./feed.js";
import { Freshness } from "./freshness.js";

/** Follow it until the signal ends it; `show` gets the whole state, `pulse` what moves on without it. */
export function followOverview({ show, pulse = () => {}, signal }) {
  const freshness = new Freshness();
  follow({
    stream: "/v1/stream?overview&pulse",
    poll: () => get("/v1/overview", signal),
    message: (message) => {
      freshness.hear(message);
      show(message);
    },
    pulse: (message) => {
      freshness.hear(message);
      pulse(message);
    },
    link: (link) => (freshness.link = link),
    signal,
  });
  return freshness;
}
