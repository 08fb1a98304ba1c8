// Elements of the page. Text from outside always becomes a text node, never markup. Elements are
// updated in place, so that focus, selection and open details survive an update.

import { UNKNOWN } from "./format.js";

let lastId = 0;

/** Returns an identifier that no other element has. */
export function freshId() {
  lastId += 1;
  return `id-${lastId}`;
}

/** Creates an element. Strings among the children become text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an element of a drawing. */
export function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(key, String(value));
  }
  node.append(...children);
  return node;
}

/** Sets the text of an element, if it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Makes the children of `parent` those of `items`. `keyOf` identifies an item, and `create` returns
 * `{ node, update }` for a new one. Children of items that remain are kept.
 */
export function keyed(parent, items, keyOf, create) {
  const old = parent.parts ?? new Map();
  const now = new Map();
  items.forEach((item, at) => {
    const key = keyOf(item, at);
    if (now.has(key)) return;
    const part = old.get(key) ?? create(item);
    part.update(item);
    const place = parent.children[now.size] ?? null;
    if (place !== part.node) parent.insertBefore(part.node, place);
    now.set(key, part);
  });
  for (const [key, part] of old) {
    if (!now.has(key)) part.node.remove();
  }
  parent.parts = now;
}

/** Creates the content of a cell: a text, a link, or a state. */
function cellContent() {
  const holder = { node: document.createTextNode(""), form: "text" };
  holder.show = (value) => {
    const shown = typeof value === "object" && value !== null ? value : { text: value };
    const form = shown.href !== undefined ? "link" : shown.badge ? "badge" : "text";
    if (form !== holder.form) {
      const made = {
        link: () => el("a"),
        badge: () => el("span", { class: "badge" }),
        text: () => document.createTextNode(""),
      }[form]();
      holder.node.replaceWith(made);
      Object.assign(holder, { node: made, form });
    }
    setText(holder.node, String(shown.text ?? UNKNOWN));
    if (form === "link") holder.node.setAttribute("href", shown.href);
    if (form === "badge") setBadge(holder.node, shown.text);
  };
  return holder;
}

/** Shows a state in an element. */
export function setBadge(node, state) {
  const known = ["ok", "degraded", "failing"];
  const look = state === "not answering" ? "failing" : known.includes(state) ? state : "other";
  node.className = `badge ${look}`;
  setText(node, state);
}

/**
 * A table with a caption. A column has a `name`, a function `cell` from an item to a text,
 * `{ text, href }` or `{ text, badge: true }`, and optionally a `look`: number or long.
 */
export class Table {
  constructor(caption, columns, empty = "None.") {
    const id = freshId();
    this.columns = columns;
    const heads = columns.map(({ name, look }) =>
      el("th", { scope: "col", class: look === "number" ? look : null }, name),
    );
    this.body = el("tbody");
    const table = el(
      "table",
      {},
      el("caption", { id }, caption),
      el("thead", {}, el("tr", {}, ...heads)),
      this.body,
    );
    // It can be scrolled by the keyboard where it does not fit.
    const scroll = { class: "scroll", role: "group", tabindex: 0, "aria-labelledby": id };
    this.wide = el("div", scroll, table);
    this.empty = el("p", {}, `${caption}: ${empty}`);
    this.node = el("div", {}, this.wide, this.empty);
    this.update([], () => "");
  }

  /** Shows these items. */
  update(items, keyOf) {
    this.wide.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
    keyed(this.body, items, keyOf, () => this.#row());
  }

  #row() {
    const contents = this.columns.map(cellContent);
    const cells = contents.map((content, at) => {
      const attributes = { class: this.columns[at].look ?? null };
      if (at === 0) attributes.scope = "row";
      return el(at === 0 ? "th" : "td", attributes, content.node);
    });
    const update = (item) => {
      contents.forEach((content, at) => content.show(this.columns[at].cell(item)));
    };
    return { node: el("tr", {}, ...cells), update };
  }
}

/**
 * A list of names and values. A fact is a name and a function from an item to a text or
 * `{ text, href }`; a fact without a value is left out.
 */
export class Facts {
  constructor(facts) {
    this.node = el("dl");
    this.facts = facts.map(([name, value]) => {
      const content = cellContent();
      const [term, details] = [el("dt", {}, name), el("dd", {}, content.node)];
      this.node.append(term, details);
      return { value, content, parts: [term, details] };
    });
  }

  update(item) {
    for (const { value, content, parts } of this.facts) {
      const shown = value(item);
      const isAbsent = shown === undefined || shown === null || shown === "";
      for (const part of parts) part.hidden = isAbsent;
      if (!isAbsent) content.show(shown);
    }
  }
}

/** A share of a whole, as a bar with a text. */
export class Share {
  constructor(label) {
    this.bar = el("meter", { min: 0, max: 1, high: 0.9, optimum: 0, "aria-label": label });
    this.text = el("span");
    this.node = el("p", {}, this.bar, " ", this.text);
  }

  /** Shows a share from 0 to 1 and its text; hides the bar if the share is undefined. */
  update(share, text) {
    this.node.hidden = share === undefined;
    if (share === undefined) return;
    this.bar.value = share;
    setText(this.text, text);
  }
}

/** Creates a section with a heading. */
export function section(heading, ...children) {
  const id = freshId();
  return el("section", { "aria-labelledby": id }, el("h2", { id }, heading), ...children);
}
