// One event, looked up by its id: what became of it, and which invoice it is in.

import { get, path, Refused } from "./api.js";
import { el, escaped, name, table, wide } from "./dom.js";
import { amount } from "./money.js";
import { capital, count, month, sentence } from "./words.js";

/** The view: the address holds the id, so that a receipt can be linked to. */
export function eventsView({ url, signal, go }) {
  const id = url.searchParams.get("id") ?? "", source = url.searchParams.get("source") ?? "";
  const field = input("event", "Event id", id), from = input("source", "Source, if it came in a CloudEvents envelope", source);
  field.field.required = true;
  const give = (event) => {
    event.preventDefault();
    const asked = new URLSearchParams({ id: field.field.value, ...(from.field.value ? { source: from.field.value } : {}) });
    go(`/events?${asked}`);
  };
  const found = el("div", { role: "status" });
  if (id) lookUp(id, source, signal).then((node) => show(found, node));
  return el("div", { class: "view" },
    el("div", { class: "view-top" }, el("h1", { tabindex: "-1" }, "Events")),
    el("section", { class: "card" }, el("h2", {}, "Look up an event"),
      el("form", { class: "look-up", role: "search", on: { submit: give } }, field.node, from.node, el("button", { class: "primary" }, "Look up"))),
    found);
}

/** What was found, with the focus on it: the form that asked was drawn anew. */
function show(place, node) {
  if (node === null) return;
  place.replaceChildren(node);
  node.querySelector("h2")?.focus();
}

function input(id, label, value) {
  const field = el("input", { id, type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", value });
  return { field, node: el("div", {}, el("label", { for: id }, label), field) };
}

async function lookUp(id, source, signal) {
  try {
    return receipt(await get(path(["v1", "events", id], source ? { source } : {}), signal));
  } catch (error) {
    if (signal.aborted) return null;
    return el("p", { class: "card" }, error instanceof Refused ? sentence(error.message) : "The server cannot be reached.");
  }
}

function receipt(event) {
  const rejected = event.rejections.map((each) => [count(each.batch), each.reason, each.place, escaped(each.detail ?? "")]);
  const columns = [{ title: "Batch" }, { title: "Reason" }, { title: "Place in the log" }, { title: "Why" }];
  return el("section", { class: "card" },
    el("h2", { tabindex: "-1" }, "Receipt of ", name(event.id)),
    el("dl", { class: "facts" },
      ...fact("State", el("strong", {}, capital(event.state)), event.reversed ? ", then reversed" : ""),
      ...fact("Customer", event.customer === null ? null : el("a", { href: `/?${new URLSearchParams({ customer: event.customer })}` }, name(event.customer))),
      ...fact("Type", event.type),
      ...fact("Amount", event.amount === null ? null : amount(event.amount)),
      ...fact("Day", event.day),
      ...fact("Billed in", event.period === null ? null : month(event.period)),
      ...fact("Invoice", event.state === "counted" ? invoice(event) : null),
      ...fact("Batch", count(event.batch)),
      ...fact("Place in the log", event.place),
      ...fact("Source", event.source === null ? null : name(event.source))),
    rejected.length ? wide("Rejections of this id", table("Rejections of this id", columns, rejected)) : null);
}

function invoice({ invoice: issued, customer }) {
  if (issued === null || customer === null) return "not issued yet";
  const { period, revision, latest_revision: latest } = issued;
  const href = path(["v1", "invoices", period, customer, String(latest)], { format: "html" });
  const since = latest > revision ? `, in it since revision ${revision}` : "";
  return el("span", {}, el("a", { href, target: "_blank", rel: "noopener" }, `${month(period)}, revision ${latest}`, el("span", { class: "unseen" }, ", in a new tab")), since);
}

function fact(title, ...value) {
  return value[0] === null ? [] : [el("dt", {}, title), el("dd", {}, ...value)];
}
