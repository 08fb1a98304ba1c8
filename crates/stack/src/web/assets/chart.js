// A chart of curves over time, with the same figures as text and as a table.

import { Table, drawn, el, freshId, setText } from "./elements.js";
import { UNKNOWN, clock } from "./format.js";

/** Time that a chart shows, in milliseconds. */
const WINDOW = 300_000;
/** Rows of the table of figures. */
const ROWS = 15;
/** Space around the curves, in pixels. */
const SPACE = { left: 76, right: 10, top: 10, bottom: 22 };
/** Curves that differ in color and dashes. */
const LOOKS = 4;

/** Returns a round number that is at least `value`; with `binary`, one of 1024 and its powers. */
export function roundUp(value, binary) {
  if (!(value > 0)) return 2;
  const base = binary ? 1024 : 1000;
  let unit = 1;
  while (value / unit > base) unit *= base;
  while (!binary && value / unit <= 1 / base) unit /= base;
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
  steps.push(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000);
  const usual = binary ? [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : steps;
  return unit * (usual.find((step) => value / unit <= step) ?? base);
}

/** Returns the path of a curve, with gaps where a value is missing. */
export function curve(points, x, y) {
  let path = "";
  let isOpen = false;
  for (const [time, value] of points) {
    if (value === null || value === undefined) {
      isOpen = false;
      continue;
    }
    const at = `${x(time).toFixed(1)},${y(value).toFixed(1)}`;
    // A point alone has an extent of its own, else it is not drawn.
    path += isOpen ? `L${at}` : `M${at}h0.1`;
    isOpen = true;
  }
  return path;
}

export class Chart {
  /**
   * `series` lists the name and the key of each curve, and `format` formats values. `binary` is
   * true for bytes.
   */
  constructor(title, series, format, binary = false) {
    const id = freshId();
    Object.assign(this, { title, series, format, binary, points: [] });
    this.legend = series.map(({ name }, at) => {
      const line = drawn("line", { x1: 0, y1: 6, x2: 32, y2: 6, class: this.#look(at) });
      const key = drawn("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, line);
      const value = el("b");
      return { value, node: el("li", {}, key, `${name} `, value) };
    });
    this.plot = drawn("svg", { class: "plot", role: "img", "aria-label": title });
    const columns = [
      { name: "Time", cell: (point) => clock(point.time) },
      ...series.map(({ name, key }) => ({
        name,
        look: "number",
        cell: (point) => format(point.values?.[key]),
      })),
    ];
    this.table = new Table(`${title}, the latest first`, columns);
    this.details = el("details", {}, el("summary", {}, "Figures as a table"), this.table.node);
    this.details.addEventListener("toggle", () => this.#showTable());
    this.node = el(
      "figure",
      { "aria-labelledby": id },
      el("figcaption", {}, el("h3", { id }, title)),
      el("ul", { class: "legend" }, ...this.legend.map(({ node }) => node)),
      this.plot,
      this.details,
    );
    new ResizeObserver(() => this.#draw()).observe(this.plot);
  }

  #look(at) {
    return `curve series-${at % LOOKS}`;
  }

  /** Shows these points, the oldest first. */
  update(points) {
    this.points = points;
    const last = points.at(-1)?.values;
    this.series.forEach(({ key }, at) => setText(this.legend[at].value, this.format(last?.[key])));
    this.#draw();
    this.#showTable();
  }

  #showTable() {
    if (!this.details.open) return;
    const latest = this.points.slice(-ROWS).reverse();
    this.table.update(latest, (point) => point.time);
  }

  /** Draws the points of the window that ends with the last one. */
  #draw() {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (width === 0 || height === 0) return;
    const end = this.points.at(-1)?.time ?? 0;
    const shown = this.points.filter(({ time }) => time >= end - WINDOW);
    const values = shown.flatMap(({ values }) => this.series.map(({ key }) => values?.[key] ?? null));
    const known = values.filter((value) => value !== null);
    const top = roundUp(Math.max(0, ...known), this.binary);
    const x = (time) =>
      SPACE.left + ((time - end + WINDOW) / WINDOW) * (width - SPACE.left - SPACE.right);
    const y = (value) =>
      height - SPACE.bottom - (value / top) * (height - SPACE.top - SPACE.bottom);
    const parts = [...this.#axes(width, height, top, y)];
    this.series.forEach(({ key }, at) => {
      const points = shown.map(({ time, values }) => [time, values?.[key] ?? null]);
      parts.push(drawn("path", { class: this.#look(at), d: curve(points, x, y) }));
    });
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.dataset.points = String(known.length);
    this.plot.replaceChildren(...parts);
    this.plot.setAttribute("aria-label", this.#summary(shown));
  }

  *#axes(width, height, top, y) {
    for (const part of [0, 0.5, 1]) {
      const at = y(top * part);
      const ends = { x1: SPACE.left, y1: at, x2: width - SPACE.right, y2: at };
      yield drawn("line", { class: "grid", ...ends });
      const label = { x: SPACE.left - 8, y: at + 4, "text-anchor": "end" };
      yield drawn("text", label, this.format(top * part));
    }
    const below = height - 6;
    yield drawn("text", { x: SPACE.left, y: below }, "5 min ago");
    yield drawn("text", { x: width - SPACE.right, y: below, "text-anchor": "end" }, "now");
  }

  /** Describes the curves in words. */
  #summary(shown) {
    const parts = this.series.map(({ name, key }) => {
      const values = shown.map(({ values }) => values?.[key] ?? null);
      const known = values.filter((value) => value !== null);
      if (known.length === 0) return `${name}: no figures yet`;
      const last = values.at(-1);
      const now = last === null ? UNKNOWN : this.format(last);
      return `${name}: now ${now}, at most ${this.format(Math.max(...known))}`;
    });
    return `${this.title} of the last 5 minutes. ${parts.join(". ")}.`;
  }
}
