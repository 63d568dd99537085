"use strict";
// Starts the page: tables before plotly has even been read, plots as they come into view, all of
// them for print, and again when the theme changes.
const DATA = JSON.parse(document.getElementById("data").textContent);
let timeline = null;
const PLOTS = ["latency-plot", "curve-plot", "cohorts-plot", "steps-plot", "collectives-plot"];
const drawn = new Set();
function drawPlot(name) {
  const draw = {
    "latency-plot": () => drawLatency(DATA.latency), "curve-plot": () => drawCurve(DATA.latency),
    "cohorts-plot": () => drawCohorts(DATA.cohorts, DATA.words), "steps-plot": () => drawSteps(DATA.steps),
    "collectives-plot": () => drawCollectives(),
  }[name];
  drawn.add(name);
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
function startTables() {
  startTips();
  for (const place of document.querySelectorAll("[data-grid]")) {
    new Grid(place, DATA.grids.find((grid) => grid.id === place.dataset.grid), (name) => timeline && timeline.openRequest(name));
  }
  cohortsTable();
}
function startPlots() {
  startTimeline();
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) { observer.unobserve(target); drawPlot(target.id); }
    }
  }, { rootMargin: "600px" });
  PLOTS.map((name) => document.getElementById(name)).filter(Boolean).forEach((place) => {
    place.style.minHeight = `${heightOf(place.id)}px`;
    observer.observe(place);
  });
  addEventListener("beforeprint", () => PLOTS.filter((name) => !drawn.has(name)).forEach(drawPlot));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { [...drawn].forEach(drawPlot); timeline.draw(); });
  document.documentElement.dataset.ready = "yes";
}
startTables();
