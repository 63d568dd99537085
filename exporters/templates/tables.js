"use strict";
// Tables that sort by a click on a head and filter by text. Cells are text nodes: names are hostile.
const PAGE_ROWS = 12;
class Grid {
  constructor(place, grid, openRequest) {
    this.grid = grid;
    this.openRequest = openRequest;
    this.limit = PAGE_ROWS;
    this.sort = { column: grid.sorted, down: true };
    this.words = "";
    this.units = grid.columns.map((column, at) => columnUnit(grid.rows.map((row) => row[at]), column.kind));
    this.search = grid.rows.map((row) => row.filter((v) => typeof v === "string").join(" ").toLowerCase());
    this.build(place);
    this.fill();
  }
  build(place) {
    this.head = element("tr");
    this.grid.columns.forEach((column, index) => this.head.append(this.headCell(column, index)));
    this.body = element("tbody");
    this.more = element("button", { class: "plain", type: "button", onclick: () => { this.limit *= 4; this.fill(); } });
    this.status = element("span", { role: "status" });
    const caption = element("caption", { class: "sr" }, this.grid.title);
    const table = element("table", {}, caption, element("thead", {}, this.head), this.body);
    const tools = [this.grid.rows.length > 8 ? this.filterBox() : null, this.widthButton(table)].filter(Boolean);
    if (tools.length) place.append(element("div", { class: "grid-head" }, ...tools));
    place.append(scrollable(this.grid.title, table), element("div", { class: "grid-foot" }, this.more, this.status));
  }
  filterBox() {
    const input = element("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${this.grid.title}` });
    input.addEventListener("input", () => { this.words = input.value.toLowerCase(); this.limit = PAGE_ROWS; this.fill(); });
    return input;
  }
  // Columns that matter less stand behind a button, so that the others fit the page.
  widthButton(table) {
    const minor = this.grid.columns.filter((column) => column.minor).map((column) => column.head);
    if (!minor.length) return null;
    const button = element("button", { class: "plain", type: "button", "aria-pressed": "false", title: minor.join(", ") }, "More columns");
    button.addEventListener("click", () => {
      const all = table.classList.toggle("all");
      button.setAttribute("aria-pressed", String(all));
      button.textContent = all ? "Fewer columns" : "More columns";
    });
    return button;
  }
  headCell(column, index) {
    const minor = column.minor ? " minor" : "", unit = this.units[index];
    if (column.kind === "mix") return element("th", { scope: "col" }, element("span", { class: "term", tabindex: 0, title: column.about }, column.head));
    const button = element("button", { type: "button", class: column.about ? "term" : "", title: column.about || null }, column.head);
    if (unit) button.append(element("span", { class: "unit" }, `, ${unit.name}`));
    button.addEventListener("click", () => this.sortBy(index));
    return element("th", { scope: "col", class: (isNumber(column.kind) ? "num" : "") + minor, "aria-sort": index === this.grid.sorted ? "descending" : "none" }, button);
  }
  sortBy(index) {
    const numeric = isNumber(this.grid.columns[index].kind);
    const again = this.sort.column === index;
    this.sort = { column: index, down: again ? !this.sort.down : numeric };
    [...this.head.children].forEach((cell, at) => {
      if (cell.hasAttribute("aria-sort")) cell.setAttribute("aria-sort", at !== index ? "none" : this.sort.down ? "descending" : "ascending");
    });
    this.fill();
  }
  chosen() {
    const { column, down } = this.sort;
    const words = this.words.split(/\s+/).filter(Boolean);
    const found = this.grid.rows.filter((_, at) => words.every((word) => this.search[at].includes(word)));
    if (column < 0 || (column === this.grid.sorted && down)) return found;
    return [...found].sort((a, b) => compare(a[column], b[column], down));
  }
  fill() {
    const rows = this.chosen();
    this.body.replaceChildren(...rows.slice(0, this.limit).map((row) => this.row(row)));
    this.more.hidden = rows.length <= this.limit;
    this.more.textContent = "Show more";
    const shown = Math.min(rows.length, this.limit);
    this.status.textContent = rows.length > PAGE_ROWS || this.words ? `${shown} of ${rows.length} rows` : "";
  }
  row(values) {
    return element("tr", {}, ...values.map((value, at) => this.cell(value, this.grid.columns[at], at)));
  }
  cell(value, column, at) {
    const tip = this.tip(value, column);
    const attributes = { class: (isNumber(column.kind) ? "num" : "") + (column.minor ? " minor" : ""), title: tip, "data-value": typeof value === "number" ? value : null };
    if (at === 0) attributes.scope = "row";
    return element(at === 0 ? "th" : "td", attributes, this.content(value, column, this.units[at]));
  }
  // What a cell says on hover or tap: its exact value, and what the column means.
  tip(value, column) {
    const told = column.kind === "mix" ? null : exact(value, column.kind);
    const head = told ? `${column.head}: ${told}.` : isNumber(column.kind) ? `${column.head}.` : null;
    return head && [head, column.about].filter(Boolean).join(" ");
  }
  content(value, column, unit) {
    const text = unit && value !== null ? inUnit(value, unit) : format(value, column.kind);
    if (value === null) return element("span", { class: "unknown-value" }, text);
    if (column.kind === "share") return element("span", { class: "share-cell", style: `--w:${Math.min(100, value * 100)}%` }, text);
    if (column.kind === "mix") return mix(value);
    if (column.kind === "class") return element("span", { title: text }, dot(value), DATA.words[value] || text);
    if (column.kind === "part") return element("span", { title: text }, dot(value), text.split(": ").pop());
    if (column.kind === "request" && this.openRequest) {
      return element("button", { class: "link", type: "button", onclick: () => this.openRequest(value) }, element("bdi", {}, text));
    }
    return column.kind === "text" || column.kind === "request" ? longName(text) : document.createTextNode(text);
  }
}
function isNumber(kind) { return !["mix", "text", "class", "part", "request"].includes(kind); }
function mix(values) {
  const total = values.reduce((a, b) => a + b, 0) || 1;
  const pieces = values.map((ns, at) => (ns ? element("span", { class: CLASS_NAMES[at], style: `flex:${ns / total} 0 0` }) : null));
  const text = values.map((ns, at) => (ns ? `${CLASS_NAMES[at]} ${percent(ns / total)}` : null)).filter(Boolean).join(", ");
  return element("span", { class: "mix", role: "img", "aria-label": text, title: text }, ...pieces);
}
function dot(part) { return element("span", { class: `dot ${String(part).split(".")[0]}`, "aria-hidden": "true" }); }
function longName(text) {
  const code = text.length > 40 || /[_<:(]/.test(text);
  const node = element("bdi", { class: [code ? "wide" : "", text.length > 40 ? "name" : ""].join(" ").trim() }, text);
  if (text.length > 40) node.addEventListener("click", () => node.classList.toggle("open"));
  return node;
}
// Unknown values stand last whichever way a column is sorted.
function compare(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}
