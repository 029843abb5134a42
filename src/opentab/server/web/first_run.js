// A home where nothing was billed yet: how to send the first event, in place of empty charts.

import { el } from "./dom.js";

/** A card that stands in place of `rest` until there is a first batch. */
export function firstRun(session, rest) {
  const node = el("section", { class: "card first-run" });
  node.hidden = true;
  return {
    node,
    show: (position) => {
      const isEmpty = position === 0;
      if (isEmpty && !node.firstChild) node.append(...howTo(session));
      node.hidden = !isEmpty;
      rest.forEach((each) => (each.hidden = isEmpty));
    },
  };
}

function howTo({ tokens, types }) {
  const time = `${new Date().toISOString().slice(0, 19)}Z`;
  const event = JSON.stringify({ id: "first", time, customer: "ann", type: types[0] ?? "CALL", amount: "0.25" });
  const token = tokens ? '-H "authorization: Bearer $TOKEN" ' : "";
  const line = (text) => el("pre", {}, el("code", {}, text));
  return [
    el("h2", {}, "Send the first event"),
    el("p", {}, "Nothing was billed here yet. An event is one use with its price; this one goes on the tab of ann."),
    el("h3", {}, tokens ? "Over HTTP, with a producer's token" : "Over HTTP"),
    line(`curl ${location.origin}/v1/events ${token}-H 'content-type: application/json' -d '${event}'`),
    el("h3", {}, "Or from a terminal on this machine"),
    line(`echo '${event}' | opentab ingest --home DIR`),
    el("h3", {}, "Then bill it"),
    el("p", {}, "A pipeline does that within a second. Where none runs yet, start one:"),
    line("opentab run --home DIR"),
  ];
}
