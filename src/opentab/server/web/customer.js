// One customer: the running total in large type, how old it is, what it is made of, how it grew, what was invoiced.

import { getIfThere, path, Refreshed } from "./api.js";
import { announceSoon } from "./announcer.js";
import { behind, Chart, course } from "./chart.js";
import { el, mark, name, say, table } from "./dom.js";
import { Freshness, stamp } from "./freshness.js";
import { earlierMonths } from "./invoices.js";
import { amount, axisMoney, decimal, exactMoney, height, isFiner, micros, money, moneyParts, sum } from "./money.js";
import { dayOf, daysOf, instant, month, percent, plural } from "./words.js";

const USAGE_PAUSE_MS = 5_000; // the course comes from the ledger, which takes longer than a total
const INVOICES_PAUSE_MS = 1_000;
const NOTHING = { total: "0.000000", types: {}, adjustments: [], events: 0, status: "open", last_event: null };

/** A card, kept up to date by what `show`, `pulse` and `link` are told. */
export function customerCard({ customer, signal, isPinned, alone, pin, remove }) {
  const freshness = new Freshness();
  const id = `customer-${Math.random().toString(36).slice(2)}`;
  const period = el("p", { class: "period" }, "\u00a0");
  const total = el("p", { class: "total", "data-total": "" });
  const exact = el("p", { class: "quiet exact" }), note = el("p", { class: "quiet note" });
  const split = el("div", { class: "split" });
  const invoices = earlierMonths(customer);
  const coursePlace = el("div", { class: "behind-place" });
  const chart = new Chart({ height: 190, signal, below: [coursePlace] });
  const courseTitle = el("h3", {}, "Over the month");
  let state = null, days = null, seen = null, shownTotal = null, seenRows = -1;

  const usage = new Refreshed(async () => {
    const of = state.current_period;
    if (!of) return;
    const range = { from: `${of}-01`, to: `${of}-${daysOf(of)}`, group: "day" };
    const answer = await getIfThere(path(["v1", "customers", customer, "usage"], range), signal);
    days = { of, items: answer?.items ?? [] };
    drawCourse();
  }, { pauseMs: USAGE_PAUSE_MS, signal });
  const issued = new Refreshed(async () => {
    const answer = await getIfThere(path(["v1", "customers", customer, "invoices"]), signal);
    invoices.issued(answer?.items ?? []);
    drawNote();
  }, { pauseMs: INVOICES_PAUSE_MS, signal });

  const current = () => state.totals.find((each) => each.period === state.current_period) ?? NOTHING;

  const show = (message) => {
    state = message;
    freshness.hear(message);
    const own = current();
    say(period, state.current_period ? month(state.current_period) : "No month yet");
    if (shownTotal !== own.total) drawTotal(own);
    drawSplit(own);
    drawNote();
    drawCourse();
    invoices.totals(state.totals.filter((each) => each.period !== state.current_period));
    look(message);
    if (days?.of !== state.current_period || own.events !== days.events) usage.wanted();
    if (days) days.events = own.events;
  };

  /** Whether there may be new invoices: they come a moment after the totals, and move no total. */
  const look = ({ invoices_position: issuedUpto }) => {
    const marks = JSON.stringify([issuedUpto, state?.totals.map((each) => [each.period, each.status])]);
    if (marks !== seen) issued.wanted();
    seen = marks;
  };

  const drawTotal = (own) => {
    total.replaceChildren(...moneyParts(own.total).map((part) => (part.small ? el("span", { class: part.small }, part.text) : el("span", {}, part.text))));
    mark(total, "data-total", own.total);
    total.style.setProperty("--width", total.textContent.length); // as large as there is room
    mark(total, "title", exactMoney(own.total));
    say(exact, isFiner(own.total) ? `exactly ${exactMoney(own.total)}` : "\u00a0");
    if (shownTotal !== null) {
      if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
        total.animate([{ color: "var(--accent)" }, { color: "var(--text)" }], { duration: 600 });
      }
      announceSoon(`${customer}: ${money(own.total)}`);
    }
    shownTotal = own.total;
  };
  const drawNote = () => {
    const own = current();
    const parts = own.events ? [plural(own.events, "event"), `the last one of ${instant(own.last_event)}`] : [];
    if (!state.totals.length && invoices.isEmpty) parts.push("Nothing was billed to this name yet. It shows up here with the first event");
    else if (!own.events) parts.push("Nothing used this month");
    say(note, `${parts.join(", ")}.`);
  };
  const drawSplit = (own) => {
    const rows = Object.entries(own.types).map(([type, amount]) => ({ type, amount }));
    if (own.adjustments.length) rows.push({ type: "Adjustments", amount: sum(own.adjustments.map((each) => each.amount)) });
    rows.sort((a, b) => (micros(b.amount) > micros(a.amount) ? 1 : micros(b.amount) < micros(a.amount) ? -1 : 0));
    split.replaceChildren(el("h3", {}, "By type"), rows.length ? splitTable(rows) : el("p", { class: "quiet" }, "Nothing yet."));
  };
  const drawCourse = () => {
    if (!state?.current_period) return;
    const of = state.current_period, length = daysOf(of), own = current();
    const used = sum(Object.values(own.types));
    let running = 0n;
    const known = days?.of === of ? days.items : [];
    const rows = known.map((item) => ({ day: Number(item.day.slice(8)), upto: decimal((running += micros(item.total))) }));
    // The newest day goes on with the live total; the ledger is asked again now and then.
    const newest = dayOf(own.last_event, of);
    if (newest > (rows.at(-1)?.day ?? 0)) rows.push({ day: newest, upto: used });
    else if (rows.length) rows.at(-1).upto = used;
    const points = rows.map((row) => ({ at: (row.day - 1) / (length - 1), value: height(row.upto), title: `${row.day} ${month(of)}: ${money(row.upto)}` }));
    if (rows.length && rows[0].day > 1) points.unshift({ at: 0, value: 0 });
    const ticks = [1, 8, 15, 22, length].map((day, n) => ({ at: (day - 1) / (length - 1), text: String(day), anchor: n === 4 ? "end" : "middle" }));
    const label = rows.length
      ? `Usage of ${month(of)} day by day, added up: ${money(rows[0].upto)} on day ${rows[0].day}, ${money(used)} on day ${rows.at(-1).day}.`
      : `No usage in ${month(of)} yet.`;
    chart.show(label, course({ points, ticks, axis: axisMoney }));
    const open = coursePlace.querySelector("details")?.open;
    const list = behind("Day by day", table("Usage by day, added up", [{ title: "Day" }, { title: "So far", number: true }], rows.map((row) => [String(row.day), amount(row.upto)]), { unseenCaption: true }));
    if (open) list.open = true;
    else if (!rows.length) list.hidden = true;
    if (!open || seenRows !== rows.length) coursePlace.replaceChildren(list);
    seenRows = rows.length;
  };

  const buttons = pin === null ? null : el("div", { class: "buttons" },
    el("button", { class: "plain", "aria-pressed": String(isPinned), on: { click: () => pin(customer) } }, isPinned ? "Pinned" : "Pin", el("span", { class: "unseen" }, ` ${customer}`)),
    el("button", { class: "plain", on: { click: () => remove(customer) } }, "Close", el("span", { class: "unseen" }, ` ${customer}`)));
  const node = el("article", { class: alone ? "card customer alone" : "card customer", "aria-labelledby": id },
    el("div", { class: "card-top" }, el("h2", { id }, name(customer)), buttons),
    el("div", { class: "figure" }, period, total, exact, stamp(freshness, signal, customer), note),
    el("div", { class: "parts" }, split, el("div", { class: "course" }, courseTitle, chart.node)),
    invoices.node);
  return {
    customer, node, show,
    pulse: (pulse) => {
      freshness.hear(pulse);
      if (state) look(pulse);
    },
    link: (link) => (freshness.link = link),
  };
}

function splitTable(rows) {
  const largest = rows.reduce((most, row) => Math.max(most, Math.abs(height(row.amount))), 0) || 1;
  const all = rows.reduce((whole, row) => whole + height(row.amount), 0);
  const body = rows.map(({ type, amount: own }) => {
    const bar = el("span", { class: micros(own) < 0n ? "bar credit" : "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", Math.abs(height(own)) / largest);
    const share = all > 0 && height(own) >= 0 ? percent(height(own) / all) : "";
    return [el("span", {}, type, bar), amount(own), share];
  });
  return table("By type", [{ title: "Type" }, { title: "Amount", number: true }, { title: "Share", number: true }], body, { unseenCaption: true });
}
