// The flow as it is: log, pipeline, ledger, replica, you; with what each says of itself, and what is down.

import { el, svg } from "./dom.js";

const NARROW = 980; // a name and its state need so much beside four others
const NODE = { head: 62, line: 20, tallLine: 38, gap: 34 };
const PAD = 14;

/** A drawing that is given nodes {name, state, word, lines} and lies down where there is room. */
export class Flow {
  #nodes = [];
  #width = 0;
  #line = NODE.line;

  constructor(signal) {
    this.drawing = svg("svg", { class: "flow", "aria-hidden": "true", focusable: "false" });
    this.node = el("div", { class: "flow-place" }, this.drawing);
    const watch = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width && width !== this.#width) {
        this.#width = width;
        this.#line = NODE.line;
        this.#draw();
      }
    });
    watch.observe(this.node);
    signal.addEventListener("abort", () => watch.disconnect());
  }

  show(nodes) {
    const changed = JSON.stringify(nodes) !== JSON.stringify(this.#nodes);
    this.#nodes = nodes;
    if (changed) this.#draw();
  }

  /** A label stands next to its value, or above it where a language or a clock of 12 hours needs more room. */
  #draw() {
    if (!this.#width || !this.#nodes.length) return;
    this.#drawNodes();
    if (this.#line === NODE.tallLine || ![...this.drawing.querySelectorAll(".flow-line")].some(isTight)) return;
    this.#line = NODE.tallLine;
    this.#drawNodes();
  }

  #drawNodes() {
    const upright = this.#width < NARROW, number = this.#nodes.length, { gap } = NODE;
    const width = upright ? this.#width : Math.floor((this.#width - (number - 1) * gap) / number);
    const line = this.#line, height = NODE.head + 3 * line;
    const total = upright ? number * height + (number - 1) * gap : height;
    this.drawing.setAttribute("width", this.#width);
    this.drawing.setAttribute("height", total + 4);
    this.drawing.setAttribute("viewBox", `-2 -2 ${this.#width + 4} ${total + 4}`);
    const shapes = this.#nodes.flatMap((node, n) => {
      const x = upright ? 0 : n * (width + gap), y = upright ? n * (height + gap) : 0;
      const own = box(node, { x, y, width, height, line });
      return n ? [arrow(node.link, upright ? { x: x + width / 2, y: y - gap } : { x: x - gap, y: y + height / 2 }, gap, upright), own] : [own];
    });
    this.drawing.replaceChildren(...shapes);
  }
}

function box({ name, state, word, lines }, { x, y, width, height, line }) {
  const tall = line === NODE.tallLine;
  const texts = lines.map(([label, value], n) => svg("g", { class: "flow-line", "data-room": width - 2 * PAD },
    svg("text", { class: "flow-label", x: PAD, y: NODE.head + n * line - (tall ? 6 : 0) }, label),
    svg("text", { class: "flow-value", x: tall ? PAD : width - PAD, y: NODE.head + n * line + (tall ? 11 : 0), "text-anchor": tall ? "start" : "end" }, value)));
  return svg("g", { class: `flow-node ${state}`, transform: `translate(${x} ${y})` },
    svg("rect", { width, height, rx: 12 }),
    svg("text", { class: "flow-name", x: PAD, y: 27 }, name),
    svg("circle", { class: "flow-dot", cx: width - 18, cy: 22, r: 5 }),
    svg("text", { class: "flow-word", x: width - 30, y: 26, "text-anchor": "end" }, word),
    ...texts);
}

/** Whether a label and its value do not fit next to each other. */
function isTight(line) {
  const [label, value] = line.children;
  return label.getComputedTextLength() + value.getComputedTextLength() + 8 > Number(line.dataset.room);
}

function arrow(state, { x, y }, gap, upright) {
  const end = gap - 7;
  const turned = upright ? `translate(${x} ${y}) rotate(90)` : `translate(${x} ${y})`;
  return svg("g", { class: `flow-arrow ${state}`, transform: turned },
    svg("line", { x1: 7, y1: 0, x2: end - 4, y2: 0 }), svg("path", { d: `M${end - 7} -5L${end} 0L${end - 7} 5` }));
}
