// The management view: what comes in, from whom, where each month stands, and what could not be billed.

import { get, path, Refreshed } from "./api.js";
import { behind, Chart, legend, stacks } from "./chart.js";
import { el, escaped, mark, name, say, table, wide } from "./dom.js";
import { stamp } from "./freshness.js";
import { amount, axisMoney, exactMoney, height, money, moneyParts, sum } from "./money.js";
import { firstRun } from "./first_run.js";
import { followOverview } from "./overview.js";
import { Pace } from "./pace.js";
import { badge, completeness, standing, waitsFor } from "./standing.js";
import { everyTick } from "./ticker.js";
import { count, instant, month, plural, short } from "./words.js";

const MONTHS_DRAWN = 6;
const SERIES_MAX = 9; // as many colours as can be told apart
const PACE_SECONDS = 60;
const SAMPLES = 8;

/** The view, live. */
export function managementView({ session, signal }) {
  const pace = new Pace();
  let state = null;

  const revenue = figure("Revenue this month", "total small-total");
  const rate = figure("Events a second");
  const events = figure("Events this month");
  const customers = figure("Customers this month");
  const paceChart = new Chart({ height: 140, signal });
  const byType = new Chart({ height: 340, signal });
  const typeNames = el("div"), typeTable = el("div");
  const top = el("div"), months = el("div"), late = el("div");
  const rejected = rejections(signal), all = el("div", { class: "view" }), empty = firstRun(session, [all]);

  const show = (message) => {
    const first = state === null;
    empty.show(message.position);
    state = message;
    if (first) get("/v1/batches?limit=200", signal).then((answer) => pace.seed(answer.items, message.events)).catch(() => {});
    pace.see(message.events);
    const current = message.periods.find((each) => each.period === message.current_period);
    const parts = moneyParts(current?.total ?? "0.000000").map((part) => el("span", { class: part.small }, part.text));
    revenue.value.replaceChildren(...parts);
    mark(revenue.value, "data-total", current?.total ?? "0.000000");
    mark(revenue.value, "title", exactMoney(current?.total ?? "0.000000"));
    say(revenue.note, message.current_period ? month(message.current_period) : "No month yet");
    say(events.value, count(current?.events ?? 0));
    say(events.note, `${count(message.events)} since the beginning`);
    say(customers.value, count(current?.customers ?? 0));
    say(customers.note, "with usage or adjustments");
    drawTypes(message);
    top.replaceChildren(topTable(message));
    drawMonths(message);
    drawLate(message);
    rejected.counts(message.rejections);
  };
  const drawTypes = ({ periods, types }) => {
    const names = [...new Set(types.map((each) => each.type))].sort();
    const drawn = periods.slice(-MONTHS_DRAWN);
    const of = (period, type) => types.find((each) => each.period === period && each.type === type)?.total ?? "0.000000";
    const series = seriesOf(names, (type) => sum(drawn.map(({ period }) => of(period, type))));
    const columns = drawn.map(({ period }) => ({
      label: month(period, "short"),
      title: `${month(period)}: ${names.map((type) => `${type} ${money(of(period, type))}`).join(", ")}`,
      parts: series.map(({ types: own }, n) => ({ value: height(sum(own.map((type) => of(period, type)))), series: n })),
    }));
    const last = drawn.at(-1);
    byType.show(last ? `Usage by type in ${plural(drawn.length, "month")}. ${columns.at(-1).title}.` : "Nothing yet.", stacks({ columns, axis: axisMoney, gap: 0.45 }));
    typeNames.replaceChildren(legend(series.map((each) => each.name)));
    const rows = drawn.toReversed().map(({ period }) => [month(period), amount(sum(names.map((type) => of(period, type)))), ...names.map((type) => amount(of(period, type)))]);
    const columnNames = [{ title: "Month" }, ...["Together", ...names].map((title) => ({ title, number: true }))];
    const open = typeTable.querySelector("details")?.open;
    const node = behind("In numbers", wide("Usage by type and month", table("Usage by type and month", columnNames, rows, { unseenCaption: true })));
    if (open) node.open = true;
    if (document.activeElement?.closest("details") !== typeTable.firstChild || !typeTable.firstChild) typeTable.replaceChildren(node);
  };
  const drawMonths = ({ periods, current_period: current }) => {
    // The total comes right after the month: it is seen on a phone, too, where the rest is scrolled to.
    const columns = ["Month", "Total", "State", "Customers", "Events", "Invoices", "Revisions", "Adjustments", "Complete"].map((title, n) => ({ title, number: n === 1 || (n > 2 && n < 8) }));
    const rows = periods.toReversed().map((each) => [
      month(each.period), amount(each.total), stateCell(each, current), count(each.customers), count(each.events),
      each.invoices ? `${count(each.invoices)} for ${money(each.invoiced)}` : "none", count(each.revisions),
      each.adjusted_events ? el("span", {}, amount(each.adjusted), ` in ${plural(each.adjusted_events, "event")}`) : "none",
      el("div", { class: "meters" }, ...each.partitions.map((partition) => meter(each, partition))),
    ]);
    keepScroll(months, () => rows.length ? wide("Months", table("Months", columns, rows, { unseenCaption: true })) : el("p", { class: "quiet" }, "No month yet: nothing was billed."));
  };
  const drawLate = ({ periods, late_events: lateEvents, events: all }) => {
    const revisions = periods.reduce((whole, each) => whole + each.revisions, 0);
    const adjusted = sum(periods.map((each) => each.adjusted));
    const adjustedEvents = periods.reduce((whole, each) => whole + each.adjusted_events, 0);
    late.replaceChildren(el("dl", { class: "facts" },
      ...fact("Late events", count(lateEvents), all ? `came after their month had closed, of ${count(all)}` : ""),
      ...fact("Revisions", count(revisions), "invoices issued again for them"),
      ...fact("Adjustments", amount(adjusted), `${plural(adjustedEvents, "event")} of final months, billed in a later one`)));
  };
  const freshness = followOverview({ show, signal });
  const drawPace = () => {
    const now = pace.rate;
    say(rate.value, now < 10 ? now.toLocaleString(undefined, { maximumFractionDigits: 1 }) : count(Math.round(now)));
    say(rate.note, "over the last ten seconds");
    const second = Math.floor(Date.now() / 1000);
    if (second === drawPace.second) return;
    drawPace.second = second;
    const seconds = pace.bySecond(PACE_SECONDS);
    const columns = seconds.map((value, n) => ({ label: "", title: `${PACE_SECONDS - n} s ago: ${count(value)}`, parts: [{ value, series: 0 }] }));
    paceChart.show(`Events in each of the last ${PACE_SECONDS} seconds; ${count(Math.round(now))} a second now.`, stacks({ columns, axis: short, gap: 0.2, max: 3 }));
  };
  everyTick(drawPace, signal);

  all.append(
    el("div", { class: "figures" }, revenue.node, rate.node, events.node, customers.node),
    el("div", { class: "two" },
      card("Usage by type", byType.node, typeNames, typeTable),
      card("Largest tabs this month", top)),
    el("div", { class: "two" }, card("Events in the last minute", paceChart.node), card("Late", late)),
    card("Months", months),
    card("Rejected", rejected.node));
  return el("div", { class: "view" },
    el("div", { class: "view-top" }, el("h1", { tabindex: "-1" }, "Management"), stamp(freshness, signal, "Management")),
    empty.node, all);
}

/** A colour for each type; of more types than colours, the largest have their own and the rest share one. */
function seriesOf(names, totalOf) {
  if (names.length <= SERIES_MAX) return names.map((name) => ({ name, types: [name] }));
  const size = (name) => height(totalOf(name).replace("-", ""));
  const own = new Set([...names].sort((a, b) => size(b) - size(a)).slice(0, SERIES_MAX - 1));
  const rest = names.filter((name) => !own.has(name));
  return [...names.filter((name) => own.has(name)).map((name) => ({ name, types: [name] })), { name: plural(rest.length, "other type"), types: rest }];
}

function figure(title, kind = "") {
  const value = el("dd", { class: `figure-value ${kind}` }, "–"), note = el("dd", { class: "quiet" }, "\u00a0");
  return { node: el("dl", { class: "card figure-card" }, el("dt", {}, title), value, note), value, note };
}

function card(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), ...children);
}

function fact(title, value, note) {
  return [el("dt", {}, title), el("dd", {}, el("strong", {}, value), " ", el("span", { class: "quiet" }, note))];
}

function topTable({ top }) {
  if (!top.length) return el("p", { class: "quiet" }, "Nobody yet.");
  const largest = Math.max(...top.map((each) => Math.abs(height(each.total)))) || 1;
  const rows = top.map((each) => {
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", Math.abs(height(each.total)) / largest);
    const link = el("a", { href: `/?${new URLSearchParams({ customer: each.customer })}` }, name(each.customer));
    return [el("span", {}, link, bar), amount(each.total), count(each.events)];
  });
  return table("Largest tabs", [{ title: "Customer" }, { title: "Total", number: true }, { title: "Events", number: true }], rows, { unseenCaption: true });
}

function stateCell(period, current) {
  const state = standing(period, current);
  const since = { revised: `last on ${instant(period.revised_at)}`, closed: `on ${instant(period.closed_at)}`, final: `closed on ${instant(period.closed_at)}` };
  const when = state === "final" && !period.closed_at ? "" : since[state] ?? waitsFor(period);
  return el("div", { class: "state" }, badge(state), el("span", { class: "quiet" }, when));
}

function meter(period, partition) {
  const share = completeness(period, partition), percent = `${Math.floor(100 * share)} %`;
  const bar = el("span", { class: share === 1 ? "meter full" : "meter", "aria-hidden": "true" });
  bar.style.setProperty("--share", share);
  return el("span", { class: "meter-line" }, el("span", {}, partition.partition), bar, el("span", { class: "quiet" }, partition.idle ? `${percent}, silent` : percent));
}

/** Draw something anew without moving what a reader has scrolled to, or focused. */
function keepScroll(place, make) {
  const before = place.querySelector(".wide");
  const at = before?.scrollLeft ?? 0, focused = before !== null && before === document.activeElement;
  place.replaceChildren(make());
  const after = place.querySelector(".wide");
  if (after && at) after.scrollLeft = at;
  if (after && focused) after.focus({ preventScroll: true });
}

/** Rejections by reason, and the newest of them; a reason can be chosen. */
function rejections(signal) {
  const chooser = el("select", { id: "reason" }, el("option", { value: "" }, "all reasons"));
  const counts = el("div"), samples = el("div", { class: "samples" });
  let known = {};
  const ask = new Refreshed(async () => {
    const reason = chooser.value;
    const answer = await get(path(["v1", "rejections"], { limit: SAMPLES, ...(reason ? { reason } : {}) }), signal);
    if (chooser.value !== reason) return ask.wanted();
    const rows = answer.items.map((item) => [
      item.place, item.reason,
      el("div", {}, el("code", {}, escaped(item.raw), item.bytes > 2000 ? " …" : ""), el("div", { class: "quiet" }, item.detail ? escaped(item.detail) : "")),
    ]);
    keepScroll(samples, () => rows.length
      ? wide("The newest rejections", table("The newest", [{ title: "Place in the log" }, { title: "Reason" }, { title: "What came" }], rows))
      : el("p", { class: "quiet" }, "Nothing was rejected."));
  }, { pauseMs: 2000, signal });
  chooser.addEventListener("change", () => ask.wanted());
  const show = (now) => {
    if (JSON.stringify(now) === JSON.stringify(known) && counts.firstChild) return;
    known = now;
    const reasons = Object.entries(now).sort(([, a], [, b]) => b - a);
    const largest = reasons[0]?.[1] ?? 1;
    const rows = reasons.map(([reason, number]) => {
      const bar = el("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", number / largest);
      return [el("span", {}, reason, bar), count(number)];
    });
    counts.replaceChildren(rows.length ? table("By reason", [{ title: "Reason" }, { title: "Inputs", number: true }], rows, { unseenCaption: true }) : el("p", { class: "quiet" }, "Nothing was rejected."));
    const chosen = chooser.value;
    chooser.replaceChildren(el("option", { value: "" }, "all reasons"), ...reasons.map(([reason]) => el("option", { value: reason }, reason)));
    chooser.value = chosen;
    choice.hidden = !rows.length;
    if (rows.length) ask.wanted();
  };
  const choice = el("div", { class: "choice" }, el("label", { for: "reason" }, "Samples of"), chooser);
  choice.hidden = true;
  return { node: el("div", { class: "rejections" }, counts, el("div", {}, choice, samples)), counts: show };
}
