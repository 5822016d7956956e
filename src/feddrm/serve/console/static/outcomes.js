"use strict";
// Outcomes over time, the challenger and drift. Uses the helpers of console.js.

const CHART = { width: 480, height: 120, left: 44, bottom: 16 };
const LINES = [["accuracy", "Accuracy"], ["calibration_error", "Calibration error"], ["abstention", "Abstention"]];
let outcomesShown = 0; // time of the latest request for outcomes

function svgElement(name, attributes, text) {
  const created = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, value);
  if (text !== undefined) created.textContent = text;
  return created;
}

function showChallenger(challenger) {
  $("challenger").textContent = challenger === null ? "" :
    `Challenger ${challenger.artifact}: ` +
    (challenger.share ? `answers ${percent(challenger.share)} of the requests` : "decides beside (shadow)");
}

function showDrift(drift) {
  $("drift").className = drift && drift.alarm ? "bad" : "";
  if (drift === null) $("drift").textContent = "";
  else if (!drift.watched) $("drift").textContent = "Drift is not watched: this router has no reference. Fit it again.";
  else if (drift.p_value === null) $("drift").textContent = `Drift: waiting for ${drift.window} queries.`;
  else {
    $("drift").textContent = (drift.alarm ? "Drift: recent queries differ from the training data" : "No drift") +
      ` (latest p = ${drift.p_value.toPrecision(2)}, ${drift.queries} queries tested; false alarm ` +
      `${percent(drift.false_alarm)} in ${drift.horizon} queries).`;
  }
}

function outcomeChart({ periods, seconds }) {
  const { height, left, bottom } = CHART;
  const width = Math.min(CHART.width, $("outcome-chart").clientWidth || CHART.width); // a phone has less
  const label = LINES.map(([name, title]) => `${title}: ` + periods.map((period) =>
    period[name] === null ? "none" : percent(period[name])).join(", ")).join("; ");
  const svg = svgElement("svg", { width, height: height + bottom, role: "img", "aria-label": label });
  const begin = periods[0].from, end = periods[periods.length - 1].from + seconds;
  const x = (period) => left + ((width - left) * (period.from + seconds / 2 - begin)) / (end - begin);
  const y = (value) => 8 + (1 - value) * (height - 16);
  for (const value of [0, 0.5, 1]) {
    svg.append(svgElement("line", { x1: left, x2: width, y1: y(value), y2: y(value), class: "grid" }),
      svgElement("text", { x: 0, y: y(value) + 4 }, `${100 * value} %`));
  }
  LINES.forEach(([name], line) => {
    const known = periods.map((period) => [x(period), period[name]]).filter(([, value]) => value !== null);
    const points = known.map(([place, value]) => `${place.toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    svg.append(svgElement("polyline", { points, class: `line${line}` }));
    for (const [place, value] of known) svg.append(svgElement("circle", { cx: place, cy: y(value), r: 3, class: `line${line}` }));
  });
  const day = (time) => new Date(1000 * time).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  svg.append(svgElement("text", { x: left, y: height + bottom - 2 },
    `${day(begin)} to ${day(end)}`));
  return svg;
}

function outcomeLegend() {
  const legend = element("p", null, { "aria-hidden": "true" }); // the chart's label says it all
  LINES.forEach(([, title], line) => legend.append(element("span", `● ${title}`, { class: `line${line}` }), " "));
  return legend;
}

async function showOutcomes() {
  if (Date.now() - outcomesShown < 5000) return;
  outcomesShown = Date.now();
  const table = await (await call("v1/outcomes")).json();
  $("outcomes").hidden = false;
  $("outcome-chart").replaceChildren(
    ...(table.periods.length ? [outcomeLegend(), outcomeChart(table)] : [element("p", "No predictions yet.")]));
  const share = (value) => element("td", value === null ? "" : percent(value), { class: "number" });
  const count = (value) => element("td", value, { class: "number" });
  replaceRows($("outcome-artifacts"), table.artifacts.map((entry) => row([
    entry.artifact, count(entry.predictions), count(entry.abstained), count(entry.outcomes), share(entry.accuracy),
    share(entry.calibration_error),
  ])));
}
