// Charts, drawn as wide as their place is. Each has a sentence that says the same, and a table behind it.

import { el, svg } from "./dom.js";

const LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 26;

/** A figure: a drawing that follows its width, a sentence instead of it, and whatever stands below. */
export class Chart {
  #draw = null;
  #width = 0;

  constructor({ height, signal, below = [] }) {
    this.height = height;
    this.drawing = svg("svg", { class: "chart", role: "img", "aria-label": "", height });
    this.node = el("figure", {}, this.drawing, ...below);
    const watch = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width && width !== this.#width) {
        this.#width = width;
        this.#again();
      }
    });
    watch.observe(this.node);
    signal.addEventListener("abort", () => watch.disconnect());
  }

  /** Draw by a function of the width, which returns nodes; `label` says what is seen. */
  show(label, draw) {
    this.drawing.setAttribute("aria-label", label);
    this.#draw = draw;
    this.#again();
  }

  #again() {
    if (!this.#draw || !this.#width) return;
    this.drawing.setAttribute("width", this.#width);
    this.drawing.setAttribute("viewBox", `0 0 ${this.#width} ${this.height}`);
    this.drawing.replaceChildren(...this.#draw(this.#width, this.height));
  }
}

/** How something adds up: points {at, value} with `at` from 0 to 1, ticks {at, text} below. */
export function course({ points, ticks, axis }) {
  return (width, height) => {
    const area = areaOf(width, height), scale = scaleOf(points.map((p) => p.value), area);
    const x = (at) => area.left + at * area.width;
    const line = points.map((p, n) => `${n ? "L" : "M"}${x(p.at).toFixed(1)} ${scale.y(p.value).toFixed(1)}`).join("");
    const last = points.at(-1);
    const shapes = [];
    if (points.length) {
      const below = `L${x(last.at).toFixed(1)} ${scale.y(0)}L${x(points[0].at).toFixed(1)} ${scale.y(0)}Z`;
      shapes.push(svg("path", { class: "area", d: line + below }), svg("path", { class: "line", d: line }),
        svg("circle", { class: "end", cx: x(last.at), cy: scale.y(last.value), r: 4.5 }));
      for (const p of points) {
        if (p.title) shapes.push(svg("circle", { class: "touch", cx: x(p.at), cy: scale.y(p.value), r: 9 }, svg("title", {}, p.title)));
      }
    }
    return [...grid(scale, area, axis), ...ticks.map((t) => tick(x(t.at), area, t)), ...shapes];
  };
}

/** Bars of parts: columns {label, title, parts: [{value, series}]}, in order. */
export function stacks({ columns, axis, every = 1, gap = 0.35, max = 0, base = 10 }) {
  return (width, height) => {
    const area = areaOf(width, height);
    const tops = columns.map((c) => c.parts.reduce((sum, p) => sum + Math.max(0, p.value), 0));
    const lows = columns.map((c) => c.parts.reduce((sum, p) => sum + Math.min(0, p.value), 0));
    const scale = scaleOf([...tops, ...lows, max], area, base);
    const step = area.width / Math.max(1, columns.length), bar = Math.min(72, Math.max(1, step * (1 - gap)));
    const shapes = [];
    columns.forEach((column, n) => {
      const middle = area.left + (n + 0.5) * step;
      let up = 0, down = 0;
      const parts = [svg("title", {}, column.title)];
      for (const { value, series } of column.parts) {
        if (!value) continue;
        const from = value > 0 ? up : down, to = from + value;
        if (value > 0) up = to; else down = to;
        const top = scale.y(Math.max(from, to)), bottom = scale.y(Math.min(from, to));
        parts.push(svg("rect", { class: `series-${series}`, x: (middle - bar / 2).toFixed(1), width: bar.toFixed(1), y: top.toFixed(1), height: Math.max(0, bottom - top).toFixed(1) }));
      }
      // What can be pointed at is as high as the chart: small bars have names, too.
      parts.push(svg("rect", { class: "touch", x: middle - step / 2, width: step, y: area.top, height: area.height }));
      shapes.push(svg("g", {}, ...parts));
      if (n % every === 0 && column.label) shapes.push(tick(middle, area, { text: column.label, anchor: "middle" }));
    });
    return [...grid(scale, area, axis), ...shapes];
  };
}

/** The names of series; they are 0, 1, 2 … unless told otherwise. */
export function legend(names, series = names.map((_, n) => n)) {
  return el("ul", { class: "legend" }, ...names.map((text, n) =>
    el("li", {}, el("span", { class: `key series-${series[n]}`, "aria-hidden": "true" }), text)));
}

/** A table behind a chart, for those who want the numbers. */
export function behind(title, table) {
  return el("details", { class: "behind" }, el("summary", {}, title), table);
}

function areaOf(width, height) {
  const area = { left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
  return { ...area, bottom: area.top + area.height, right: area.left + area.width };
}

function scaleOf(values, area, base = 10) {
  const high = Math.max(0, ...values), low = Math.min(0, ...values);
  const step = roundStep((high - low || 1) / 3, base);
  const top = Math.ceil(high / step - 1e-9) * step || (low ? 0 : step), bottom = Math.floor(low / step + 1e-9) * step;
  const steps = [];
  for (let n = Math.round(bottom / step); n <= Math.round(top / step); n++) steps.push(n * step);
  return { steps, y: (value) => area.bottom - ((value - bottom) / (top - bottom)) * area.height };
}

/** A step that is easy to read: in tens, or for bytes in powers of two. */
function roundStep(rough, base) {
  if (base === 2) return 2 ** Math.max(0, Math.ceil(Math.log2(rough)));
  const power = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999);
  return found * power;
}

function grid(scale, area, axis) {
  return scale.steps.flatMap((value) => [
    svg("line", { class: value === 0 ? "base" : "grid", x1: area.left, x2: area.right, y1: scale.y(value), y2: scale.y(value) }),
    svg("text", { class: "tick", x: area.left - 8, y: scale.y(value) + 4, "text-anchor": "end" }, axis(value)),
  ]);
}

function tick(x, area, { text, anchor = "middle" }) {
  return svg("text", { class: "tick", x, y: area.bottom + 18, "text-anchor": anchor }, text);
}
