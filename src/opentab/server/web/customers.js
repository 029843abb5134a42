// The customers' view: choose one by typing, pin as many as you like side by side. All of them share one stream.

import { getIfThere, get, path } from "./api.js";
import { announce } from "./announcer.js";
import { customerCard } from "./customer.js";
import { el, name, say } from "./dom.js";
import { firstRun } from "./first_run.js";
import { follow } from "./feed.js";
import { money } from "./money.js";
import { search } from "./search.js";
import { month } from "./words.js";

const PINNED_MAX = 19;
const CHIPS = 12, CHIPS_MS = 2000;

/** The view that an address means: `?customer=` is the one in front, each `?pin=` stays. */
export function customersView({ url, session, signal, go }) {
  const own = session.role === "customer" ? session.customer : null;
  const pinned = own === null ? [...new Set(url.searchParams.getAll("pin"))].slice(0, PINNED_MAX) : [];
  const chosen = own ?? url.searchParams.get("customer");
  const customers = chosen === null || pinned.includes(chosen) ? pinned : [chosen, ...pinned];

  const address = (customer, pins) => {
    const query = new URLSearchParams();
    if (customer !== null && !pins.includes(customer)) query.append("customer", customer);
    pins.forEach((each) => query.append("pin", each));
    return query.size ? `/?${query}` : "/";
  };
  const choose = (customer) => go(address(customer, pinned));
  const pin = (customer) => {
    const stays = pinned.includes(customer);
    announce(stays ? "Unpinned" : "Pinned: the next customer that you choose is shown beside this one");
    go(stays ? address(customer, pinned.filter((each) => each !== customer)) : address(chosen, [...pinned, customer]));
  };
  const remove = (customer) => go(address(chosen === customer ? null : chosen, pinned.filter((each) => each !== customer)));

  const cards = customers.map((customer) =>
    customerCard({ customer, signal, isPinned: pinned.includes(customer), alone: customers.length === 1, pin: own === null ? pin : null, remove: own === null ? remove : null }));
  if (customers.length) live(customers, cards, signal);
  const heading = el("h1", { class: "unseen", tabindex: "-1" }, own === null ? "Customers" : "Your tab");
  const chooser = own === null ? search({ choose, signal, label: customers.length ? "Another customer" : "Customer" }) : null;
  return el("div", { class: "view" }, heading,
    customers.length ? chooser : welcome(session, chooser, choose, signal),
    el("div", { class: customers.length > 1 ? "cards side-by-side" : "cards" }, ...cards.map((card) => card.node)));
}

function live(customers, cards, signal) {
  const query = new URLSearchParams(customers.map((customer) => ["customer", customer]));
  const each = (message, tell) => {
    const known = message.customers ?? [message];
    cards.forEach((card) => {
      const own = known.find((one) => one.customer === card.customer);
      if (own) tell(card, { ...message, ...own });
    });
  };
  follow({
    stream: `/v1/stream?${query}&pulse`,
    poll: () => poll(customers, signal),
    message: (message) => each(message, (card, own) => card.show(own)),
    pulse: (pulse) => cards.forEach((card) => card.pulse(pulse)),
    link: (link) => cards.forEach((card) => card.link(link)),
    signal,
  });
}

/** The same as a message of the stream, by questions. */
async function poll(customers, signal) {
  const found = await Promise.all(customers.map((customer) => getIfThere(path(["v1", "customers", customer]), signal)));
  const fresh = found.find(Boolean);
  if (!fresh) return { customers: customers.map((customer) => ({ customer, totals: [] })), staleness_ms: null };
  return {
    ...fresh,
    customers: customers.map((customer, n) => {
      const own = found[n];
      return { customer, totals: own ? [...own.closed, ...own.open, ...(own.current ? [own.current] : [])] : [] };
    }),
  };
}

/** Nobody is chosen yet: the largest tabs are a way in, and they tick. */
function welcome(session, chooser, choose, signal) {
  const list = el("ul", { class: "chips" });
  const title = el("h2", { class: "quiet" });
  const ask = el("div", { class: "view" }, el("p", { class: "lead" }, "Whose tab?"), chooser, title, list), empty = firstRun(session, [ask]);
  let shown = [];
  const draw = ({ position, period, items }) => {
    empty.show(position);
    say(title, items.length ? `Largest tabs of ${month(period)}` : "Nothing was billed yet. Names appear here with the first events.");
    const names = items.map((item) => item.customer);
    if (names.join("\n") !== shown.join("\n")) {
      if (list.contains(document.activeElement)) return; // nothing moves away from under a finger
      shown = names;
      list.replaceChildren(...items.map((item) => el("li", {},
        el("button", { class: "chip", on: { click: () => choose(item.customer) } }, name(item.customer), el("span", { class: "amount" })))));
    }
    [...list.querySelectorAll(".amount")].forEach((amount, n) => say(amount, money(items[n].total)));
  };
  const look = async () => {
    try {
      draw(await get(path(["v1", "customers"], { order: "-total", limit: CHIPS }), signal));
    } catch {
      if (!signal.aborted) say(title, "The server does not answer. It is asked again.");
    }
    if (!signal.aborted) setTimeout(look, CHIPS_MS);
  };
  look();
  return el("section", { class: "welcome" }, empty.node, ask);
}
