// Where a month stands, in a word, and why.

import { el } from "./dom.js";
import { instant } from "./words.js";

/** open, closing, closed, revised or final; `current` is the current period. */
export function standing(period, current) {
  if (period.status === "open") return current !== null && period.period < current ? "closing" : "open";
  if (period.status === "closed" && period.customers && !period.invoices) return "closing";
  if (period.status === "final") return "final";
  return period.revisions ? "revised" : "closed";
}

export function badge(state) {
  return el("span", { class: `badge ${state}` }, state);
}

/** What a month waits for. */
export function waitsFor({ missing }) {
  if (!missing) return "";
  const step = missing.for === "close" ? "closes" : "is final";
  if (!missing.partitions.length) return `${step} when the watermark reaches ${instant(missing.watermark)}`;
  return `${step} with events of ${instant(missing.partitions[0].needed)} or later in ${missing.partitions.map((each) => each.partition).join(", ")}`;
}

/** How much of a month a partition has brought, from 0 to 1. */
export function completeness(period, partition) {
  if (partition.complete) return 1;
  const start = Date.parse(period.start), end = Date.parse(period.end), at = Date.parse(partition.complete_upto);
  return Math.min(1, Math.max(0, (at - start) / (end - start)));
}

/** The partition that is furthest behind: it holds the watermark back. None where all are silent. */
export function holder(partitions) {
  const busy = partitions.filter((each) => !each.idle && each.complete_upto !== null);
  return busy.length ? busy.reduce((one, other) => (other.complete_upto < one.complete_upto ? other : one)) : null;
}
