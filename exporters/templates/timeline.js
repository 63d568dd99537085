"use strict";
// The timeline: lanes under one time axis. Each lane comes in levels of detail; drawing takes the
// finest one that shows at most PIECES pieces of the visible stretch.
const PIECES = 320;
class Timeline {
  constructor(data) {
    this.data = data;
    this.plot = document.getElementById("timeline-plot");
    this.views = [data.whole, ...data.focus, ...data.lives];
    this.ranks = [...new Set(data.whole.lanes.map((lane) => lane.rank))];
    this.rank = this.ranks.length > 2 ? this.ranks[0] : null;
    this.buildControls();
    this.onmove = (from, to, left) => drawSamples(DATA.samples.plots, from, to, left);
    this.open(data.focus.length ? 1 : 0);
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }
  buildControls() {
    const place = document.getElementById("timeline-controls");
    this.select = element("select", { id: "timeline-view" });
    this.views.forEach((view, at) => this.select.append(element("option", { value: at }, at ? `request ${view.name} (${format(view.length, "ns")})` : "whole trace")));
    this.select.addEventListener("change", () => this.open(Number(this.select.value)));
    place.append(element("label", { for: "timeline-view" }, "Show"), this.select);
    if (this.ranks.length > 1) place.append(...this.rankControl());
    const buttons = [["−", "Zoom out", () => this.zoom(2)], ["+", "Zoom in", () => this.zoom(0.5)], ["←", "Earlier", () => this.pan(-0.3)], ["→", "Later", () => this.pan(0.3)], ["Reset", "Show all", () => this.show(0, this.view.length)]];
    const group = element("span", { class: "push" });
    for (const [text, label, act] of buttons) group.append(element("button", { class: "plain", type: "button", "aria-label": label, onclick: act }, text), " ");
    place.append(group);
    this.legend = element("div", { class: "legend", "aria-hidden": "true" });
    place.after(this.legend);
  }
  rankControl() {
    const select = element("select", { id: "timeline-rank" }, element("option", { value: "" }, "all"));
    this.ranks.forEach((rank, at) => select.append(element("option", { value: at }, format(rank, "text"))));
    select.value = this.rank === null ? "" : "0";
    select.addEventListener("change", () => { this.rank = select.value === "" ? null : this.ranks[Number(select.value)]; this.draw(); });
    return [element("label", { for: "timeline-rank" }, "rank"), select];
  }
  openRequest(name) {
    const at = this.views.findIndex((view, index) => index && view.name === name);
    if (at > 0) this.open(at);
    document.getElementById("timeline").scrollIntoView({ block: "start" });
    this.plot.focus({ preventScroll: true });
    return at > 0;
  }
  open(at) {
    this.view = this.views[at];
    this.select.value = String(at);
    this.show(0, this.view.length);
  }
  // Request views without lanes of their own borrow those of the whole trace.
  lanes() {
    const own = this.view.lanes.map((lane) => ({ lane, shift: 0 }));
    const shift = this.data.whole.start - this.view.start;
    const borrowed = own.length === 1 && this.view !== this.data.whole ? this.data.whole.lanes.map((lane) => ({ lane, shift })) : [];
    return [...own, ...borrowed].filter(({ lane }) => this.rank === null || lane.rank === null || lane.rank === this.rank);
  }
  show(from, to) {
    const span = this.view.length || 1;
    const width = Math.min(Math.max(to - from, 10), span);
    this.from = Math.min(Math.max(from, 0), span - width);
    this.to = this.from + width;
    this.draw();
  }
  zoom(factor) {
    const middle = (this.from + this.to) / 2, half = ((this.to - this.from) * factor) / 2;
    this.show(middle - half, middle + half);
  }
  pan(part) { const by = (this.to - this.from) * part; this.show(this.from + by, this.to + by); }
  key(event) {
    const act = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), 0: () => this.show(0, this.view.length) }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  }
  label(lane) { return plain(lane.rank !== null && this.ranks.length > 1 ? `r${lane.rank} ${lane.name}` : lane.name); }
  draw() {
    const unit = unitFor(this.to - this.from);
    const byKind = new Map();
    const lanes = this.lanes();
    for (const { lane, shift } of lanes) this.collect(lane, shift, unit, byKind);
    const traces = [...byKind.entries()].map(([kind, bars]) => ({
      type: "bar", orientation: "h", name: kind, y: bars.y, base: bars.base, x: bars.x, hovertext: bars.text, hoverinfo: "text",
      marker: { color: colour(kind), opacity: bars.opacity, line: { width: 0 } },
    }));
    const names = lanes.map(({ lane }) => this.label(lane));
    this.busy = true;
    Plotly.react(this.plot, traces, layout({
      height: laneHeight(names.length), barmode: "overlay", bargap: 0.28, dragmode: "zoom", hovermode: "closest",
      xaxis: { range: [this.from / unit.factor, this.to / unit.factor], fixedrange: false, ticksuffix: ` ${unit.name}`, autorange: false, tickangle: 0, nticks: innerWidth < 720 ? 4 : 9 },
      margin: { l: margin(names), r: 14, t: 6, b: 30 },
      yaxis: { automargin: false, categoryorder: "array", categoryarray: names, range: [names.length - 0.5, -0.5], showgrid: false },
    }), { ...CONFIG, doubleClick: false }).then(() => { this.busy = false; });
    this.listen(unit);
    this.drawLegend([...byKind.keys()]);
    this.summarise(lanes);
    this.onmove(this.view.start + this.from, this.view.start + this.to, margin(names));
  }
  listen(unit) {
    this.unit = unit;
    if (this.listening) return;
    this.listening = true;
    this.plot.on("plotly_relayout", (change) => {
      if (this.busy) return;
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (from !== undefined && to !== undefined) this.show(from * this.unit.factor, to * this.unit.factor);
    });
    this.plot.on("plotly_doubleclick", () => this.show(0, this.view.length));
  }
  collect(lane, shift, unit, byKind) {
    const name = this.label(lane);
    const { level, first, last } = this.pick(lane, shift);
    for (let at = first; at < last; at++) {
      const [text, kindAt] = this.data.labels[level.label[at]];
      const kind = this.data.kinds[kindAt];
      if (!byKind.has(kind)) byKind.set(kind, { x: [], y: [], base: [], text: [], opacity: [] });
      const bars = byKind.get(kind);
      bars.y.push(name);
      bars.base.push((level.start[at] + shift) / unit.factor);
      bars.x.push(level.length[at] / unit.factor);
      bars.text.push(this.hover(level, at, text));
      bars.opacity.push(level.busy ? 0.3 + 0.7 * (level.busy[at] / 100) : 1);
    }
  }
  hover(level, at, text) {
    const words = DATA.words[text] ? `<br>${plain(DATA.words[text])}` : "";
    const length = format(level.length[at], "ns");
    if (!level.count || level.count[at] === 1) return `${plain(text)}${words}<br>${length}`;
    return `${level.count[at].toLocaleString("en-US")} pieces in ${length}, busy ${level.busy[at]} %<br>mostly ${plain(text)}${words}`;
  }
  pick(lane, shift) {
    let found = null;
    for (const level of lane.levels) {
      const columns = unpack(level);
      const first = bisect(columns.end, this.from - shift), last = bisect(columns.start, this.to - shift);
      found = { level: columns, first, last: Math.max(first, last) };
      if (last - first <= PIECES) break;
    }
    return found;
  }
  drawLegend(kinds) {
    const items = this.data.kinds.filter((kind) => kinds.includes(kind)).map((kind) => element("span", {}, element("span", { class: "dot", style: `background:var(--${kind})` }), kind));
    this.legend.replaceChildren(...items);
  }
  // What the first lane holds in the visible stretch, as a table: for reading aloud and for numbers.
  summarise(lanes) {
    const place = document.getElementById("timeline-summary");
    if (!lanes.length) return place.replaceChildren(element("p", { class: "none" }, "This trace has nothing to draw."));
    const { lane, shift } = lanes[0];
    const level = unpack(lane.levels[0]);
    const sums = new Map();
    for (let at = bisect(level.end, this.from - shift); at < level.start.length && level.start[at] + shift < this.to; at++) {
      const ns = Math.min(level.start[at] + shift + level.length[at], this.to) - Math.max(level.start[at] + shift, this.from);
      sums.set(level.label[at], (sums.get(level.label[at]) || 0) + ns);
    }
    const rows = [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, 12);
    const total = [...sums.values()].reduce((a, b) => a + b, 0);
    const body = rows.map(([label, ns]) => element("tr", {}, element("th", { scope: "row", title: this.data.labels[label][0] }, dot(this.data.kinds[this.data.labels[label][1]]), DATA.words[this.data.labels[label][0]] || this.data.labels[label][0]), element("td", { class: "internal", title: "The part's name in the summary JSON." }, DATA.words[this.data.labels[label][0]] ? this.data.labels[label][0] : ""), element("td", { class: "num", title: `${exact(Math.round(ns), "ns")} of the visible stretch` }, format(ns, "ns")), element("td", { class: "num", title: "Part of the visible stretch." }, percent(ns / total))));
    const open = place.querySelector("details")?.open;
    place.replaceChildren(element("details", { class: "in-view", ...(open ? { open: "" } : {}) }, element("summary", { title: "Of the first lane shown." }, `What the visible ${format(this.to - this.from, "ns")} are made of`), scrollable("Parts of the visible stretch", element("table", {}, element("tbody", {}, ...body)))));
  }
}
function laneHeight(lanes) { return 70 + 30 * lanes; }
// How tall the timeline will be when it is first drawn.
function timelineHeight(data) {
  const first = data.focus[0] || data.whole;
  const ranks = [...new Set(data.whole.lanes.map((lane) => lane.rank))];
  const lanes = first.lanes.filter((lane) => ranks.length < 3 || lane.rank === null || lane.rank === ranks[0]);
  return laneHeight(lanes.length);
}
function unpack(level) {
  if (level.start) return level;
  let at = 0;
  level.start = []; level.end = [];
  level.length.forEach((length, index) => { at += level.gap[index]; level.start.push(at); at += length; level.end.push(at); });
  return level;
}
// The first position whose value is greater than `value`.
function bisect(values, value) {
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] > value) high = middle; else low = middle + 1; }
  return low;
}
// Room for the lanes' names, the same in both plots so that their time axes stand under each other.
function margin(names) { return Math.min(24 + 6.6 * Math.max(8, ...names.map((name) => name.length)), innerWidth / 3.4); }
// The sampled metrics under the timeline, on the same time axis.
const SHADES = ["accent", "communication", "io", "scheduling", "prefill", "decode", "mixed", "host"];
function drawSamples(plots, from, to, left) {
  if (!plots.length) return;
  const unit = unitFor(to - from);
  const axes = {}, traces = [], annotations = [], height = 1 / plots.length;
  plots.forEach((plot, at) => {
    const id = at ? at + 1 : "";
    const scale = scaleOf(plot);
    plot.lines.forEach((line, number) => traces.push({
      type: "scatter", mode: "lines", x: line.t.map((t) => (t - from) / unit.factor), y: line.value.map((value) => value / scale.factor), yaxis: `y${id}`,
      line: { width: 1.5, color: colour(SHADES[number % SHADES.length]), shape: "hv" },
      hovertext: line.value.map((value) => `${plain(plot.name)}, ${plain(line.name)}<br>${plain(withUnit(value, plot.unit))}`), hoverinfo: "text",
    }));
    axes[`yaxis${id}`] = { domain: [1 - (at + 0.9) * height, 1 - (at + 0.28) * height], fixedrange: true, nticks: 3, gridcolor: colour("line"), zeroline: false, rangemode: ["MHz", "W", "°C"].includes(plot.unit) ? "normal" : "tozero", tickformat: plot.unit === "share" ? ".4~%" : "" };
    annotations.push({ text: plain(sampleTitle(plot, scale)), xref: "paper", yref: "paper", x: 0, y: 1 - at * height, xanchor: "left", yanchor: "top", showarrow: false, font: { size: 11 } });
  });
  Plotly.react("samples-plot", traces, { ...layout({ height: 40 + 78 * plots.length, annotations, hovermode: "closest", margin: { l: left, r: 14, t: 6, b: 30 }, xaxis: { range: [0, (to - from) / unit.factor], ticksuffix: ` ${unit.name}`, tickangle: 0, nticks: innerWidth < 720 ? 4 : 9, anchor: `y${plots.length > 1 ? plots.length : ""}` } }), ...axes }, CONFIG);
}
function scaleOf(plot) {
  const kind = { bytes: "bytes", rate: "bytes", ns: "ns" }[plot.unit];
  if (!kind) return { factor: 1, name: ["count", "share"].includes(plot.unit) ? "" : plot.unit };
  const most = plot.lines.reduce((high, line) => line.value.reduce((a, b) => Math.max(a, b), high), 0);
  const [factor, name] = SCALES[kind].find(([f]) => most >= f) || SCALES[kind][SCALES[kind].length - 1];
  return { factor, name: plot.unit === "rate" ? `${name}/s` : name };
}
function sampleTitle(plot, scale) {
  const lines = plot.lines.length > 1 ? `${plot.lines.length} lines${plot.more ? ` of ${plot.lines.length + plot.more}` : ""}` : plot.lines[0].name;
  return [`${plot.name}${scale.name ? `, ${scale.name}` : ""}`, lines].join(" · ");
}
