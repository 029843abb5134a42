// Earlier months: what was invoiced, with every revision and what it changed, and a page to print.

import { path } from "./api.js";
import { el, table } from "./dom.js";
import { amount, amountDifference, difference, less, micros, money } from "./money.js";
import { count, instant, month } from "./words.js";

/** A list of months that is told what was issued, and what is not yet. */
export function earlierMonths(customer) {
  const list = el("div", { class: "months" });
  const node = el("section", { class: "earlier" }, el("h3", {}, "Earlier months"), list);
  let statements = [], totals = [], drawn = null;

  const draw = () => {
    const now = JSON.stringify([statements, totals.map((each) => [each.period, each.status, each.total])]);
    if (now === drawn) return;
    drawn = now;
    const open = new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.period));
    const periods = [...new Set([...statements, ...totals].map((each) => each.period))].sort().reverse();
    list.replaceChildren(...periods.map((period) => {
      const own = statements.filter((each) => each.period === period);
      const total = totals.find((each) => each.period === period);
      return own.length ? invoiced(customer, period, own, open.has(period)) : waiting(period, total);
    }));
    node.hidden = !periods.length;
  };
  draw();
  return {
    node,
    get isEmpty() {
      return !statements.length;
    },
    issued: (items) => {
      statements = items;
      draw();
    },
    totals: (items) => {
      totals = items;
      draw();
    },
  };
}

function waiting(period, total) {
  const state = total.status === "open" ? "still open" : "invoice on its way";
  return el("div", { class: "month" }, el("span", { class: "month-name" }, month(period)), el("span", { class: "badge" }, state), amount(total.total, "amount"));
}

function invoiced(customer, period, revisions, isOpen) {
  const last = revisions.at(-1);
  const summary = el("summary", {},
    el("span", { class: "month-name" }, month(period)),
    el("span", { class: last.revision > 1 ? "badge revised" : "badge" }, last.revision > 1 ? `revision ${last.revision}` : "invoiced"),
    el("span", { class: "amount" }, money(last.total)));
  const sheets = revisions.map((statement, n) => sheet(customer, statement, revisions[n - 1])).reverse();
  const node = el("details", { class: "month", "data-period": period }, summary, ...sheets);
  node.open = isOpen;
  return node;
}

function sheet(customer, statement, before) {
  const printed = path(["v1", "invoices", statement.period, customer, String(statement.revision)], { format: "html" });
  const rows = before ? changes(statement, before) : statement.lines.map((line) => ({ line, value: line.amount, events: line.events }));
  const head = el("p", {},
    el("strong", {}, `Revision ${statement.revision}`), ` of ${instant(statement.issued_at)}: `, el("strong", { class: "amount" }, money(statement.total)),
    before ? el("span", { class: "delta", "data-delta": statement.delta }, ` ${difference(statement.delta)} against revision ${before.revision}`) : null);
  const title = before ? "What changed" : "Lines";
  return el("div", { class: "sheet", "data-revision": statement.revision }, head,
    table(title, [{ title: before ? "What changed" : "Line" }, { title: "Events", number: true }, { title: "Amount", number: true }],
      rows.map(({ line, value, events }) => [
        line.kind === "adjustment" ? `${line.type}, adjustment of ${month(line.period)}` : line.type,
        before ? signedCount(events) : count(events),
        before ? amountDifference(value) : amount(value),
      ]), { unseenCaption: true }),
    el("p", {}, el("a", { href: printed, target: "_blank", rel: "noopener" }, "Page to print", el("span", { class: "unseen" }, `, revision ${statement.revision} of ${month(statement.period)}, in a new tab`))));
}

/** What a revision adds to each line of the one before it. */
function changes(statement, before) {
  const key = (line) => JSON.stringify([line.kind, line.period ?? null, line.type]);
  const old = new Map(before.lines.map((line) => [key(line), line]));
  const found = statement.lines.map((line) => {
    const was = old.get(key(line)) ?? { amount: "0.000000", events: 0 };
    return { line, value: less(line.amount, was.amount), events: line.events - was.events };
  });
  return found.filter((each) => micros(each.value) !== 0n || each.events);
}

function signedCount(number) {
  return number > 0 ? `+${count(number)}` : count(number);
}
