// Elements. Text goes in as text and nothing else: names and rejected bytes are whatever someone sent.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes by name, `on` for listeners; children are nodes or texts, and null is left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for drawings. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Change a text only where it differs, so that nothing is drawn or read out for nothing. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or take away an attribute, only where it differs. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** A table with headers; `columns` are {title, number}, `rows` lists of nodes or texts, the first is the row's name. */
export function table(caption, columns, rows, { unseenCaption = false } = {}) {
  const head = columns.map((c) => el("th", { scope: "col", class: c.number ? "number" : null }, c.title));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, at) =>
      at === 0
        ? el("th", { scope: "row", class: columns[at].number ? "number" : null }, cell)
        : el("td", { class: columns[at].number ? "number" : null }, cell))));
  return el("table", {},
    el("caption", { class: unseenCaption ? "unseen" : null }, caption),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...body));
}

/** Something wide that can be scrolled, by keyboard too. */
export function wide(label, node) {
  return el("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, node);
}

/** A name that someone else chose: it must not turn the text around it. */
export function name(text) {
  return el("bdi", { class: "name" }, text);
}

/** Bytes that someone else chose, with everything that would not be seen made visible. */
export function escaped(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
