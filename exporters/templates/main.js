"use strict";
// Starts the page: tables at once, plots as they come into view, all again when the theme changes.
const DATA = JSON.parse(document.getElementById("data").textContent);
let timeline = null;
function drawPlot(name) {
  const grid = (id) => DATA.grids.find((found) => found.id === id);
  const draw = {
    "latency-plot": () => drawLatency(DATA.latency), "curve-plot": () => drawCurve(DATA.latency),
    "cohorts-plot": () => drawCohorts(DATA.cohorts, DATA.words), "steps-plot": () => drawSteps(DATA.steps),
    "collectives-plot": () => drawCollectives(grid("collectives")),
  }[name];
  if (draw && document.getElementById(name)) draw();
}
function startTimeline() {
  timeline = new Timeline(DATA.timeline);
  if (DATA.samples.length) {
    timeline.onmove = (from, to, left) => drawSamples(DATA.samples, from, to, left);
    timeline.draw();
  }
}
function cohortsTable() {
  const place = document.getElementById("cohorts-table");
  if (!place || !DATA.cohorts) return;
  const { parts, slow, fast, counts } = DATA.cohorts;
  const cell = (ns) => element("td", { class: "num", title: exact(ns, "ns") }, format(ns, "ns"));
  const rows = parts.map((part, at) => element("tr", {}, element("th", { scope: "row" }, DATA.words[part] || part), cell(slow[at]), cell(fast[at])));
  const head = element("tr", {}, element("th", { scope: "col" }, "part"), element("th", { scope: "col", class: "num" }, `slow (${counts[0]})`), element("th", { scope: "col", class: "num" }, `fast (${counts[1]})`));
  place.append(element("details", { class: "in-view" }, element("summary", {}, "As a table"), element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)))));
}
function start() {
  startTips();
  for (const place of document.querySelectorAll("[data-grid]")) {
    new Grid(place, DATA.grids.find((grid) => grid.id === place.dataset.grid), (name) => timeline.openRequest(name));
  }
  cohortsTable();
  startTimeline();
  const plots = ["latency-plot", "curve-plot", "cohorts-plot", "steps-plot", "collectives-plot"];
  plots.forEach(drawPlot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plots.forEach(drawPlot); timeline.draw(); });
  document.documentElement.dataset.ready = "yes";
}
start();
