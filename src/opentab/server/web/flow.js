// The flow as it is: log, pipeline, ledger, replica, you; with what each says of itself, and what is down.

import { el, svg } from "./dom.js";

const NARROW = 720;
const NODE = { height: 122, gap: 44, gapUpright: 34 };

/** A drawing that is given nodes {name, state, word, lines} and lies down where there is room. */
export class Flow {
  #nodes = [];
  #width = 0;

  constructor(signal) {
    this.drawing = svg("svg", { class: "flow", "aria-hidden": "true", focusable: "false" });
    this.node = el("div", { class: "flow-place" }, this.drawing);
    const watch = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width && width !== this.#width) {
        this.#width = width;
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

  #draw() {
    if (!this.#width || !this.#nodes.length) return;
    const upright = this.#width < NARROW, number = this.#nodes.length;
    const width = upright ? this.#width : Math.floor((this.#width - (number - 1) * NODE.gap) / number);
    const height = NODE.height, gap = upright ? NODE.gapUpright : NODE.gap;
    const total = upright ? number * height + (number - 1) * gap : height;
    this.drawing.setAttribute("width", this.#width);
    this.drawing.setAttribute("height", total + 4);
    this.drawing.setAttribute("viewBox", `-2 -2 ${this.#width + 4} ${total + 4}`);
    const shapes = this.#nodes.flatMap((node, n) => {
      const x = upright ? 0 : n * (width + gap), y = upright ? n * (height + gap) : 0;
      const own = box(node, x, y, width, height);
      return n ? [arrow(node.link, upright ? { x: x + width / 2, y: y - gap } : { x: x - gap, y: y + height / 2 }, gap, upright), own] : [own];
    });
    this.drawing.replaceChildren(...shapes);
  }
}

function box({ name, state, word, lines }, x, y, width, height) {
  const texts = lines.map(([label, value], n) => [
    svg("text", { class: "flow-label", x: 14, y: 62 + n * 20 }, label),
    svg("text", { class: "flow-value", x: width - 14, y: 62 + n * 20, "text-anchor": "end" }, value),
  ]);
  return svg("g", { class: `flow-node ${state}`, transform: `translate(${x} ${y})` },
    svg("rect", { width, height, rx: 12 }),
    svg("text", { class: "flow-name", x: 14, y: 27 }, name),
    svg("circle", { class: "flow-dot", cx: width - 18, cy: 22, r: 5 }),
    svg("text", { class: "flow-word", x: width - 30, y: 26, "text-anchor": "end" }, word),
    ...texts.flat());
}

function arrow(state, { x, y }, gap, upright) {
  const end = gap - 7;
  const turned = upright ? `translate(${x} ${y}) rotate(90)` : `translate(${x} ${y})`;
  return svg("g", { class: `flow-arrow ${state}`, transform: turned },
    svg("line", { x1: 7, y1: 0, x2: end - 4, y2: 0 }), svg("path", { d: `M${end - 7} -5L${end} 0L${end - 7} 5` }));
}
