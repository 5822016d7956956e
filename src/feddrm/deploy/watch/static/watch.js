"use strict";
// The page of a training. It asks the server that it was loaded from every second, and changes nothing there.

const SECOND = 1000;

function figure(value, digits) {
  return value === undefined || value === null ? "-" : value.toFixed(digits);
}

function bytes(count) {
  return (count / 2 ** 20).toFixed(1) + " MiB";
}

function clock(seconds) {
  return new Date(SECOND * seconds).toLocaleTimeString();
}

function missing(entry) {
  return Object.entries(entry.missing || {}).map(([site, reason]) => `${site}: ${reason}`).join("; ");
}

function details(event) { // lists and tables are left out: the other sections show them
  const { time, event: name, ...rest } = event;
  const simple = Object.entries(rest).filter(([, value]) => typeof value !== "object");
  return simple.map(([key, value]) => `${key.replaceAll("_", " ")} ${Number.isInteger(value) || typeof value !== "number" ? value : value.toPrecision(4)}`).join(", ");
}

function show(state) {
  $("run").textContent = `run '${state.run}', round ${state.round}` + (state.rounds ? ` of ${state.rounds}` : "");
  $("what").textContent = state.failed ? "failed: " + state.failed : state.what;
  $("what").className = state.failed || !state.running && !state.finished ? "bad" : state.finished ? "good" : "";
  $("waiting").replaceChildren(...state.waiting.map((one) =>
    element("li", `waiting for ${one.site} for ${Math.max(0, state.time - one.since).toFixed(0)} s: ${one.reason}`, { class: "bad" })));
  $("complaint").textContent = state.complaint && !state.finished ? "last complaint: " + state.complaint : "";
  $("sites").replaceChildren(...state.sites.map((site) => row([
    site.site, `${site.answered} of ${site.asked}`, site.seconds == null ? "-" : figure(site.seconds, 2) + " s",
    figure(site.loss, 4), bytes(site.bytes_sent), bytes(site.bytes_received), figure(site.epsilon, 1), site.reason || "",
  ])));
  $("rounds").replaceChildren(...[...state.history].reverse().map((entry) => row([
    entry.round, figure(entry.loss, 4), entry.accuracy_before == null ? "-" : percent(entry.accuracy_before),
    figure(entry.seconds, 2), entry.answered.join(", "), missing(entry),
  ])));
  $("events").replaceChildren(...[...state.events].reverse().map((event) =>
    row([clock(event.time), event.event, details(event)])));
}

async function refresh() {
  try {
    const answer = await fetch("state");
    const state = await answer.json();
    if (!answer.ok) throw new Error(state.error);
    show(state);
    $("error").hidden = true;
  } catch (error) {
    $("error").textContent = "The server does not answer: " + error.message;
    $("error").hidden = false;
  }
  setTimeout(refresh, SECOND);
}

refresh();
