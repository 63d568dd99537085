"use strict";
// What all plots share: colours from the style sheet, quiet axes, and texts that plotly cannot
// take for markup. Plotly reads a subset of HTML in every text it is given.
const CLASS_NAMES = ["compute", "communication", "io", "scheduling", "unknown"];
const CONFIG = { displaylogo: false, displayModeBar: false, responsive: true };
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }
function plain(text) { return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); }
function layout(more) {
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true, fixedrange: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    height: 260, margin: { l: 8, r: 12, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("soft") }, showlegend: false, bargap: 0.15,
    hoverlabel: { bgcolor: colour("ink"), bordercolor: colour("ink"), font: { color: colour("paper") }, align: "left", namelength: -1 },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}
function unitFor(longest) {
  const [factor, name] = SCALES.ns.find(([f]) => longest >= f) || SCALES.ns[3];
  return { factor, name };
}
function drawLatency(data) {
  const unit = unitFor(Math.max(...data.total));
  const ranks = data.ids.map((_, at) => at + 1);
  const traces = CLASS_NAMES.filter((name) => data.shares[name].some((ns) => ns)).map((name) => ({
    type: "bar", name, x: ranks, y: data.shares[name].map((ns) => ns / unit.factor), marker: { color: colour(name) },
    hovertext: data.ids.map((id, at) => `${plain(id)}<br>${name} ${format(data.shares[name][at], "ns")} of ${format(data.total[at], "ns")}`),
    hoverinfo: "text",
  }));
  const note = data.ids.length < data.count ? ` (${data.ids.length} of ${data.count}, evenly by rank)` : "";
  Plotly.react("latency-plot", traces, layout({
    barmode: "stack", xaxis: { title: { text: `requests by latency${note}` }, showticklabels: false, showgrid: false },
    yaxis: { title: { text: unit.name } },
  }), CONFIG);
}
function drawCurve(data) {
  const unit = unitFor(data.curve[data.curve.length - 1]);
  const marks = Object.entries(data.marks).filter(([, ns]) => ns !== null);
  const shapes = marks.map(([, ns]) => ({ type: "line", x0: ns / unit.factor, x1: ns / unit.factor, y0: 0, y1: 1, line: { color: colour("soft"), width: 1, dash: "dot" } }));
  const annotations = marks.map(([name, ns], at) => ({ x: ns / unit.factor, y: 1 - at * 0.09, yanchor: "top", xanchor: at ? "right" : "left", text: ` ${name.toUpperCase()} ${format(ns, "ns")} `, showarrow: false, font: { color: colour("ink") } }));
  Plotly.react("curve-plot", [{
    type: "scatter", mode: data.curve.length < 40 ? "lines+markers" : "lines", x: data.curve.map((ns) => ns / unit.factor), y: data.ranks,
    line: { shape: "hv", color: colour("accent"), width: 2 }, hovertext: data.curve.map((ns, at) => `${percent(data.ranks[at])} of requests<br>at most ${format(ns, "ns")}`), hoverinfo: "text",
  }], layout({ shapes, annotations, xaxis: { title: { text: unit.name }, rangemode: "tozero" }, yaxis: { tickformat: ".0%", range: [0, 1.04] } }), CONFIG);
}
function drawCohorts(data, words) {
  const unit = unitFor(Math.max(...data.slow, ...data.fast));
  const names = data.parts.map((part) => plain(words[part] || part));
  const side = (key, label, name) => ({
    type: "bar", orientation: "h", name: label, y: names, x: data[key].map((ns) => ns / unit.factor), marker: { color: colour(name) },
    hovertext: data[key].map((ns, at) => `${names[at]}<br>${label}: ${format(ns, "ns")}`), hoverinfo: "text",
  });
  Plotly.react("cohorts-plot", [side("fast", "fast", "unknown"), side("slow", "slow", "accent")], layout({
    height: 80 + names.length * 34, showlegend: true, legend: { orientation: "h", y: 1.12, traceorder: "reversed" }, xaxis: { title: { text: unit.name } },
    yaxis: { autorange: "reversed", showgrid: false },
  }), CONFIG);
}
function drawSteps(data) {
  const unit = unitFor(Math.max(...data.longest));
  const time = unitFor(Math.max(...data.start, 1));
  const x = data.start.map((ns) => ns / time.factor);
  const bars = ["prefill", "decode"].filter((kind) => data[kind].some((n) => n)).map((kind) => ({
    type: "bar", name: `${kind} tokens`, x, y: data[kind], marker: { color: colour(kind), line: { width: 0 } },
    hovertext: data[kind].map((n, at) => `step ${plain(data.ids[at])}${data.merged ? " and following" : ""}<br>${format(n, "count")} ${kind} tokens<br>${format(data.longest[at], "ns")}`), hoverinfo: "text",
  }));
  const line = { type: "scatter", mode: "markers", name: data.merged ? "longest step" : "step length", x, y: data.longest.map((ns) => ns / unit.factor), yaxis: "y2", marker: { size: 4, color: colour("accent") },
    hovertext: data.longest.map((ns, at) => `step ${plain(data.ids[at])}<br>${format(ns, "ns")}`), hoverinfo: "text" };
  const split = bars.length ? [[0.44, 1], [0, 0.36]] : [[0, 1], [0, 0]];
  Plotly.react("steps-plot", [...bars, line], layout({
    height: bars.length ? 340 : 240, barmode: "stack", bargap: 0, showlegend: true, legend: { orientation: "h", y: 1.12 },
    xaxis: { title: { text: `time since the start, ${time.name}` }, anchor: "y2" }, yaxis: { title: { text: "tokens" }, domain: split[0], visible: bars.length > 0 },
    yaxis2: { title: { text: unit.name }, domain: bars.length ? split[1] : [0, 1], gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true, fixedrange: true, rangemode: "tozero" },
  }), CONFIG);
}
function drawCollectives(grid) {
  const at = (head) => grid.columns.findIndex((column) => column.head === head);
  const [op, wait, transfer] = [at("operation"), at("longest wait"), at("transfer")];
  const groups = new Map();
  for (const row of grid.rows) {
    const sums = groups.get(row[op]) || [0, 0];
    groups.set(row[op], [sums[0] + (row[wait] || 0), sums[1] + (row[transfer] || 0)]);
  }
  const names = [...groups.keys()].map((name) => plain(name === null ? "unknown" : name));
  const sums = [...groups.values()];
  if (!sums.some(([a, b]) => a + b)) return;
  const unit = unitFor(Math.max(...sums.map(([a, b]) => a + b)));
  const side = (index, label, opacity) => ({ type: "bar", orientation: "h", name: label, y: names, x: sums.map((pair) => pair[index] / unit.factor), marker: { color: colour("communication"), opacity },
    hovertext: sums.map((pair, row) => `${names[row]}<br>${label}: ${format(pair[index], "ns")}`), hoverinfo: "text" });
  Plotly.react("collectives-plot", [side(0, "longest wait", 0.45), side(1, "transfer", 1)], layout({
    height: 90 + names.length * 30, barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1.2 }, xaxis: { title: { text: unit.name } }, yaxis: { autorange: "reversed", showgrid: false },
  }), CONFIG);
}
