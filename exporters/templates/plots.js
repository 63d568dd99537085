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
  const named = new Map();
  for (const [name, ns] of marks) named.set(ns, [...(named.get(ns) || []), name.toUpperCase()]);
  const annotations = [...named.entries()].map(([ns, names], at) => ({ x: ns / unit.factor, y: 1 + 0.07 * (at % 2), yanchor: "bottom", xanchor: "right", text: names.join(", "), showarrow: false, font: { size: 11 } }));
  Plotly.react("curve-plot", [{
    type: "scatter", mode: data.curve.length < 40 ? "lines+markers" : "lines", x: data.curve.map((ns) => ns / unit.factor), y: data.ranks,
    line: { shape: "hv", color: colour("accent"), width: 2 }, hovertext: data.curve.map((ns, at) => `${percent(data.ranks[at])} of requests<br>at most ${format(ns, "ns")}`), hoverinfo: "text",
  }], layout({ shapes, annotations, xaxis: { title: { text: unit.name }, rangemode: data.curve[0] > 0.5 * data.curve[data.curve.length - 1] ? "normal" : "tozero" }, yaxis: { tickformat: ".0%", range: [0, 1.2], tickvals: [0, 0.25, 0.5, 0.75, 1] } }), CONFIG);
}
function drawCohorts(data, words) {
  const unit = unitFor(Math.max(...data.slow, ...data.fast));
  const names = data.parts.map((part) => plain(innerWidth < 720 ? part.split(".")[1] || part : words[part] || part));
  const side = (key, label, name) => ({
    type: "bar", orientation: "h", name: label, y: names, x: data[key].map((ns) => ns / unit.factor), marker: { color: colour(name) },
    hovertext: data[key].map((ns, at) => `${names[at]}<br>${label}: ${format(ns, "ns")}`), hoverinfo: "text",
  });
  Plotly.react("cohorts-plot", [side("fast", "fast", "unknown"), side("slow", "slow", "accent")], layout({
    height: heightOf("cohorts-plot"), showlegend: true, legend: { orientation: "h", y: 1.01, yanchor: "bottom" }, xaxis: { title: { text: unit.name } },
    yaxis: { autorange: "reversed", showgrid: false },
  }), CONFIG);
}
function tokenRows(data) {
  return [["prefill", "prefill tokens"], ["decode", "decode tokens"]].filter(([kind]) => data[kind].some((n) => n));
}
// How tall a plot will be, known before it is drawn: what stands below it must not move then.
function heightOf(name) {
  if (name === "cohorts-plot") return 80 + 34 * DATA.cohorts.parts.length;
  if (name === "steps-plot") return 175 + 105 * tokenRows(DATA.steps).length;
  if (name === "kernels-plot" || name === "roofline-plot") return 330;
  if (name === "collectives-plot") return collectiveSums().size ? 90 + 30 * collectiveSums().size : 0;
  return 260;
}
function drawSteps(data) {
  const rows = tokenRows(data);
  rows.push(["length", data.merged ? "longest step" : "step length"]);
  const time = unitFor(Math.max(...data.start, 1)), unit = unitFor(Math.max(...data.longest));
  const axes = {}, height = 1 / rows.length;
  const traces = rows.map(([kind, title], at) => {
    const id = at ? at + 1 : "";
    const values = kind === "length" ? data.longest.map((ns) => ns / unit.factor) : data[kind];
    axes[`yaxis${id}`] = { domain: [1 - (at + 0.78) * height, 1 - at * height], title: { text: kind === "length" ? unit.name : "tokens", font: { size: 11 } }, nticks: 4, rangemode: "tozero", automargin: true, fixedrange: true, gridcolor: colour("line"), zerolinecolor: colour("line") };
    return { type: "bar", name: title, yaxis: `y${id}`, x: data.start.map((ns) => ns / time.factor), width: data.length.map((ns) => Math.max(ns / time.factor, 1e-9)), offset: 0, y: values, marker: { color: colour(kind === "length" ? "host" : kind), line: { width: 0 } },
      hovertext: data.ids.map((id, row) => `step ${plain(id)}${data.merged ? " and following" : ""}<br>${format(data.prefill[row], "count")} prefill, ${format(data.decode[row], "count")} decode tokens<br>${format(data.longest[row], "ns")}`), hoverinfo: "text" };
  });
  Plotly.react("steps-plot", traces, { ...layout({
    height: heightOf("steps-plot"), barmode: "overlay", showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: { title: { text: `time since the start, ${time.name}` }, anchor: `y${rows.length > 1 ? rows.length : ""}`, rangemode: "tozero" },
  }), ...axes }, CONFIG);
}
// Longest wait and transfer of every operation, ns; empty where neither was recorded.
function collectiveSums() {
  const grid = DATA.grids.find((found) => found.id === "collectives");
  const at = (head) => grid.columns.findIndex((column) => column.head === head);
  const [op, wait, transfer] = [at("operation"), at("longest wait"), at("transfer")];
  const groups = new Map();
  for (const row of grid.rows) {
    const sums = groups.get(row[op]) || [0, 0];
    groups.set(row[op], [sums[0] + (row[wait] || 0), sums[1] + (row[transfer] || 0)]);
  }
  return [...groups.values()].some(([a, b]) => a + b) ? groups : new Map();
}
function drawCollectives() {
  const groups = collectiveSums();
  if (!groups.size) return;
  const names = [...groups.keys()].map((name) => plain(name === null ? "unknown" : name));
  const sums = [...groups.values()];
  const unit = unitFor(Math.max(...sums.map(([a, b]) => a + b)));
  const hatched = { shape: "/", fillmode: "replace", fgcolor: colour("communication"), bgcolor: colour("paper"), size: 6, solidity: 0.4 };
  const side = (index, label, pattern) => ({ type: "bar", orientation: "h", name: label, y: names, x: sums.map((pair) => pair[index] / unit.factor), marker: { color: colour("communication"), pattern },
    hovertext: sums.map((pair, row) => `${names[row]}<br>${label}: ${format(pair[index], "ns")}`), hoverinfo: "text" });
  Plotly.react("collectives-plot", [side(0, "longest wait", hatched), side(1, "transfer", {})], layout({
    height: heightOf("collectives-plot"), barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1.01, yanchor: "bottom" }, xaxis: { title: { text: unit.name } }, yaxis: { autorange: "reversed", showgrid: false },
  }), CONFIG);
}
// Every kernel by how well its launch can fill a multiprocessor, and how long it takes.
function drawKernels(data) {
  const rows = data.rows.filter((row) => row.occupancy !== null);
  const unit = unitFor(Math.max(...rows.map((row) => row.mean)));
  Plotly.react("kernels-plot", byClass(rows, (row) => row.occupancy, (row) => row.mean / unit.factor, (row) => `occupancy ${percent(row.occupancy)}, ${format(row.mean, "ns")} each`), layout({
    height: heightOf("kernels-plot"), showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, hovermode: "closest",
    xaxis: { title: { text: "theoretical occupancy" }, tickformat: ".0%", range: [0, 1.05] },
    yaxis: { title: { text: `mean duration, ${unit.name}` }, type: "log", dtick: "D2" },
  }), CONFIG);
}
// A trace a class; a marker's area is the row's share of kernel time.
function byClass(rows, x, y, about) {
  return CLASS_NAMES.map((name) => [name, rows.filter((row) => row.class === name)]).filter(([, found]) => found.length).map(([name, found]) => ({
    type: "scatter", mode: "markers", name, x: found.map(x), y: found.map(y),
    marker: { color: colour(name), size: found.map((row) => 6 + 44 * Math.sqrt(row.share || 0)), sizemode: "diameter", opacity: 0.75, line: { width: 1, color: colour("paper") } },
    hovertext: found.map((row) => `${plain(row.name)}<br>${about(row)}<br>${percent(row.share || 0)} of kernel time`), hoverinfo: "text",
  }));
}
// Kernels under the roofs of their device: attainable FLOP/s by FLOP for each byte of its memory.
function drawRoofline(data) {
  const rows = data.rows;
  const low = Math.min(...rows.map((row) => row.intensity), 0.1), high = Math.max(...rows.map((row) => row.intensity), 1e4);
  const roofs = data.roofs.map(({ name, flops_s }) => {
    const ridge = flops_s / data.bandwidth;
    return { type: "scatter", mode: "lines", name, x: [low, ridge, Math.max(high, ridge * 2)], y: [low * data.bandwidth, flops_s, flops_s].map((f) => f / 1e12), line: { width: 1.5, dash: "dot", color: colour("soft") }, showlegend: false,
      hovertext: `${plain(name)}: at most ${format(flops_s / 1e12, "count")} TFLOP/s, ${format(data.bandwidth, "rate")}`, hoverinfo: "text" };
  });
  const points = byClass(rows, (row) => row.intensity, (row) => row.flops_s / 1e12, (row) => `${fixed(row.intensity, 1)} FLOP/B, ${fixed(row.flops_s / 1e12, 2)} TFLOP/s`);
  Plotly.react("roofline-plot", [...roofs, ...points], layout({
    height: heightOf("roofline-plot"), showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, hovermode: "closest",
    xaxis: { title: { text: "FLOP per byte moved, at most" }, type: "log", dtick: 1 }, yaxis: { title: { text: "TFLOP/s" }, type: "log", dtick: 1 },
  }), CONFIG);
}
