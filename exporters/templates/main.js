"use strict";
// Starts the page: tables at once, plotly when the page has been painted, plots as they come into
// view, all of them for print, and again when the theme changes.
const DATA = JSON.parse(document.getElementById("data").textContent);
let timeline = null;
const PLOTS = {
  "latency-plot": () => drawLatency(DATA.latency), "curve-plot": () => drawCurve(DATA.latency),
  "cohorts-plot": () => drawCohorts(DATA.cohorts, DATA.words), "steps-plot": () => drawSteps(DATA.steps),
  "kernels-plot": () => drawKernels(DATA.kernels), "roofline-plot": () => drawRoofline(DATA.kernels.roofline),
  "collectives-plot": () => drawCollectives(),
};
const drawn = new Set();
function drawPlot(name) {
  if (drawn.has(name) || !document.getElementById(name)) return;
  drawn.add(name);
  PLOTS[name]();
}
function drawAll() {
  startPlots();
  Object.keys(PLOTS).forEach(drawPlot);
  performance.mark("plots");
}
function redrawAll() {
  const names = [...drawn];
  drawn.clear();
  names.forEach(drawPlot);
  timeline.draw();
}
function cohortsTable() {
  const place = document.getElementById("cohorts-table");
  if (!place || !DATA.cohorts) return;
  const { parts, slow, fast, counts } = DATA.cohorts;
  const cell = (ns, about) => element("td", { class: "num", title: `${exact(ns, "ns")}: mean of the ${about} requests` }, format(ns, "ns"));
  const rows = parts.map((part, at) => element("tr", {}, element("th", { scope: "row" }, DATA.words[part] || part), cell(slow[at], "slow"), cell(fast[at], "fast")));
  const head = element("tr", {}, element("th", { scope: "col" }, "part"), ...["slow", "fast"].map((name, at) => element("th", { scope: "col", class: "num", title: `Mean of the ${counts[at]} ${name} requests.` }, `${name} (${counts[at]})`)));
  place.append(element("details", { class: "in-view" }, element("summary", {}, "As a table"), scrollable("Parts of slow and fast requests", element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)))));
}
function startTables() {
  startTips();
  for (const place of document.querySelectorAll("[data-grid]")) {
    new Grid(place, DATA.grids.find((grid) => grid.id === place.dataset.grid), (name) => timeline && timeline.openRequest(name));
  }
  cohortsTable();
  for (const name of Object.keys(PLOTS)) {
    const place = document.getElementById(name);
    if (place) place.style.minHeight = `${heightOf(name)}px`;
  }
  document.getElementById("timeline-plot").style.minHeight = `${timelineHeight(DATA.timeline)}px`;
  addEventListener("hashchange", reveal);
}
// A link into a folded part of the page unfolds it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target; fold; fold = fold.parentElement && fold.parentElement.closest("details")) {
    if (fold.tagName === "DETAILS") fold.open = true;
  }
  if (target) target.scrollIntoView();
}
function startPlots() {
  if (timeline) return;
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.head.append(script);
  timeline = new Timeline(DATA.timeline);
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) { observer.unobserve(target); drawPlot(target.id); }
    }
  }, { rootMargin: "400px" });
  Object.keys(PLOTS).map((name) => document.getElementById(name)).filter(Boolean).forEach((place) => observer.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  performance.mark("ready");
  document.documentElement.dataset.ready = "yes";
}
startTables();
if (location.hash) reveal();
addEventListener("beforeprint", drawAll);
// After the first paint: reading plotly must not hold up the verdict, the shares and the tables.
requestAnimationFrame(() => setTimeout(startPlots));
