"use strict";
// Numbers for people, exactly as the server-rendered part writes them; unknown is a dash, never 0.
const DASH = "–";
const SCALES = {
  ns: [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]],
  bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
};
function fixed(value, digits) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
function scaled(value, scale) {
  const [factor, unit] = scale.find(([f]) => Math.abs(value) >= f * 0.9995) || scale[scale.length - 1];
  const x = value / factor;
  if (factor === 1 && Number.isInteger(value)) return `${value} ${unit}`;
  return `${fixed(x, Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2)} ${unit}`;
}
function percent(fraction) {
  return fraction > 0 && fraction < 0.0005 ? "< 0.1 %" : `${fixed(fraction * 100, 1)} %`;
}
function format(value, kind) {
  if (value === null || value === undefined) return DASH;
  if (kind === "ns" || kind === "bytes") return scaled(value, SCALES[kind]);
  if (kind === "rate") return `${scaled(value, SCALES.bytes)}/s`;
  if (kind === "share") return percent(value);
  if (kind === "count" && typeof value === "number") return value.toLocaleString("en-US");
  return String(value);
}
// One unit a column, so that its cells compare at a glance: the largest in which three of four
// values do not round to nothing.
function columnUnit(values, kind) {
  const scale = SCALES[kind === "rate" ? "bytes" : kind];
  const sizes = values.filter(Boolean).map(Math.abs).sort((a, b) => a - b);
  if (!scale || !sizes.length) return null;
  const largest = sizes[sizes.length - 1], quarter = sizes[Math.floor(sizes.length / 4)];
  const [factor, unit] = scale.find(([f]) => largest >= f * 0.9995 && quarter >= f * 0.01) || scale[scale.length - 1];
  return { factor, name: kind === "rate" ? `${unit}/s` : unit, digits: factor === 1 && sizes.every(Number.isInteger) ? 0 : 2 };
}
function inUnit(value, unit) {
  const text = fixed(value / unit.factor, unit.digits);
  return value > 0 && !/[1-9]/.test(text) ? `< ${fixed(10 ** -unit.digits, unit.digits)}` : text;
}
// A sampled value: units that scale, or the number with its unit behind it.
function withUnit(value, unit) {
  if (["ns", "bytes", "rate", "share"].includes(unit)) return format(value, unit);
  const text = value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
  return unit === "count" ? text : `${text} ${unit}`;
}
// The value as it stands in the summary, for a cell's tooltip.
function exact(value, kind) {
  if (value === null || value === undefined) return "unknown";
  const unit = { ns: " ns", bytes: " bytes", rate: " bytes a second" }[kind];
  return unit ? `${value.toLocaleString("en-US")}${unit}` : kind === "share" ? String(value) : null;
}
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
// A table that scrolls sideways, which people without a mouse must be able to do as well.
function scrollable(name, ...children) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, ...children);
}
