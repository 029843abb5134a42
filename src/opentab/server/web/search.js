// Choosing a customer by typing. A combobox as the ARIA practices have it: the keyboard is enough.

import { get, path, Refreshed } from "./api.js";
import { el, mark, name, say } from "./dom.js";
import { amount } from "./money.js";
import { month, plural } from "./words.js";

const FOUND_MAX = 8;

/** A field that calls `choose` with a customer's name. */
export function search({ choose, signal, label = "Customer" }) {
  const list = el("ul", { id: "found", role: "listbox", "aria-label": "Customers", hidden: "" });
  const hint = el("p", { class: "unseen", role: "status" });
  const field = el("input", {
    id: "customer", type: "text", role: "combobox", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    maxlength: "256", placeholder: "Type a name…", "aria-expanded": "false", "aria-controls": "found",
    "aria-autocomplete": "list",
  });
  let names = [], active = -1;

  const close = () => {
    names = [];
    point(-1);
    list.replaceChildren();
    mark(list, "hidden", "");
    mark(field, "aria-expanded", "false");
  };
  const point = (at) => {
    active = at;
    [...list.children].forEach((option, n) => mark(option, "aria-selected", n === at ? "true" : "false"));
    mark(field, "aria-activedescendant", at < 0 ? null : `found-${at}`);
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const take = (customer) => {
    field.value = "";
    close();
    choose(customer);
  };
  const ask = new Refreshed(async () => {
    const typed = field.value;
    const answer = await get(path(["v1", "customers"], { any_month: true, prefix: typed, limit: FOUND_MAX }), signal);
    if (field.value !== typed || document.activeElement !== field) return ask.wanted();
    names = answer.items.map((item) => item.customer);
    list.replaceChildren(...answer.items.map((item, n) => {
      const press = (event) => {
        event.preventDefault(); // the field keeps the focus
        take(item.customer);
      };
      return el("li", { id: `found-${n}`, role: "option", "aria-selected": "false", on: { mousedown: press } },
        name(item.customer), el("span", { class: "amount" }, item.period === answer.period ? null : `${month(item.period, "short")} `, amount(item.total)));
    }));
    if (!names.length && typed) {
      list.replaceChildren(el("li", { class: "quiet", role: "option", "aria-disabled": "true", "aria-selected": "false" },
        "No name begins like that. Enter opens it all the same."));
    }
    mark(list, "hidden", list.children.length ? null : "");
    mark(field, "aria-expanded", list.children.length ? "true" : "false");
    point(-1);
    say(hint, typed ? plural(names.length, "customer") + " found" : "");
  }, { pauseMs: 120, signal });

  const keys = {
    ArrowDown: () => (names.length ? point((active + 1) % names.length) : ask.wanted()),
    ArrowUp: () => names.length && point((active + names.length - (active < 0 ? 0 : 1)) % names.length),
    Enter: () => {
      const customer = names[active] ?? field.value;
      if (customer) take(customer);
    },
    Escape: close,
  };
  field.addEventListener("input", () => ask.wanted());
  field.addEventListener("focus", () => ask.wanted());
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    if (event.key !== "Escape") event.preventDefault();
    keys[event.key]();
  });
  return el("div", { class: "search", role: "search" }, el("label", { for: "customer" }, label), field, list, hint);
}
