"use strict";
// The console: everything it shows comes from the gateway it was loaded from. Text is set as text, never as markup.

const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("key") || "";
let federation = null;
let pictures = null; // whether the router takes pictures, or rows of numbers
let chosen = null; // a sample as a Blob, where one was picked
let last = 0; // the number of the latest decision shown
let begun = null; // when the gateway that numbers them began
const SHOWN = 3; // samples in the federation's table
const views = {}; // their addresses, by client: what its shift looks like

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (key) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401 || answer.status === 403) $("key-form").hidden = false;
  if (!answer.ok) {
    let text = "the gateway answered " + answer.status;
    try { text = (await answer.json()).error || text; } catch { /* not JSON: the status says it */ }
    throw new Error(text);
  }
  return answer;
}

function percent(value) {
  return (100 * value).toFixed(value > 0 && value < 0.001 ? 3 : 1) + " %";
}

function bar(value, label) {
  const cell = element("td", null, { class: "number" });
  const meter = element("meter", percent(value), { min: 0, max: 1, value, "aria-label": label });
  cell.append(meter, percent(value));
  return cell;
}

function row(cells) {
  const line = element("tr");
  cells.forEach((cell, place) => {
    if (cell instanceof Node) line.append(cell);
    else line.append(place === 0 ? element("th", cell, { scope: "row" }) : element("td", cell));
  });
  return line;
}

function showResult(found) {
  const first = found.answers ? found.answers[0] : found.decisions[0];
  const route = first.route || first;
  const label = first.label === undefined ? null : first.label;
  if (found.answers) {
    const asked = first.answered.map((a) => `${a.client} (${percent(a.weight)}, ${a.milliseconds.toFixed(0)} ms)`);
    $("headline").textContent = label === null ? "Nobody was asked" : `Answer: ${label}, by ${first.client}`;
    const failed = first.failed.map((f) => `${f.client}: ${f.reason}`);
    $("detail").textContent = `Answered: ${asked.join(", ") || "nobody"}.` +
      (failed.length ? ` Failed: ${failed.join(", ")}.` : "");
  } else {
    $("headline").textContent = route.client === null ? "Nobody is available" : `Belongs to ${route.client}`;
    $("detail").textContent = "";
  }
  $("detail").textContent += ` Margin ${route.margin.toFixed(3)}.` +
    (route.abstain ? ` The router abstains: ${route.reason}.` : "") + ` Request ${found.request_id}.`;
  $("ranked").replaceChildren(...route.ranked.map((one) => row([
    one.client,
    bar(one.probability, `probability of ${one.client}`),
    element("td", one.log_density_ratio.toFixed(2), { class: "number" }),
    element("td", one.available ? "available" : "not available", { class: one.available ? "good" : "bad" }),
  ])));
  $("classes-table").hidden = !first.probabilities;
  if (first.probabilities) {
    $("classes").replaceChildren(...Object.entries(first.probabilities).map(([name, value]) =>
      row([name, bar(value, `probability of class ${name}`)])));
  }
  $("result").hidden = false;
}

// Known to everybody: one who may ask need not be one who may see the federation's figures.
async function shape() {
  if (pictures !== null) return;
  const about = await (await call("v2/models/router")).json();
  pictures = about.inputs[0].shape.length === 4;
  $("picture-input").hidden = !pictures;
  $("numbers-input").hidden = pictures;
}

async function ask(event) {
  event.preventDefault();
  $("error").textContent = "";
  $("send").disabled = true;
  try {
    const action = $("action").value;
    const options = { rule: $("rule").value };
    if (action === "predict") options.consult = $("consult").value;
    let answer;
    await shape();
    if (pictures) {
      const picture = $("file").files[0] || chosen;
      if (!picture) throw new Error("Choose a picture or a sample first.");
      answer = await call(`v1/${action}?${new URLSearchParams(options)}`, {
        method: "POST", body: picture, headers: { "Content-Type": picture.type || "image/png" },
      });
    } else {
      const numbers = $("numbers").value.split(/[\s,;]+/).filter(Boolean).map(Number);
      const body = { inputs: [numbers], ...options };
      if (body.consult) body.consult = Number(body.consult);
      answer = await call(`v1/${action}`, {
        method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
      });
    }
    showResult(await answer.json());
  } catch (error) {
    $("result").hidden = true;
    $("error").textContent = error.message;
  } finally {
    $("send").disabled = false;
  }
}

async function sample(client, number) {
  return (await call(`v1/samples/${encodeURIComponent(client.client)}/${number}`)).blob();
}

async function showSamples() {
  const client = federation.clients.find((one) => one.client === $("sample-client").value);
  const buttons = [];
  for (let number = 0; number < client.samples; number += 1) {
    const picture = await sample(client, number);
    const image = element("img", null, { alt: `sample ${number + 1} of ${client.client}` });
    image.src = URL.createObjectURL(picture);
    const button = element("button", null, { type: "button", "aria-pressed": "false" });
    button.append(image);
    button.addEventListener("click", () => {
      for (const other of $("sample-list").children) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", "true");
      $("file").value = "";
      chosen = picture;
    });
    buttons.push(button);
  }
  for (const old of $("sample-list").querySelectorAll("img")) URL.revokeObjectURL(old.src);
  $("sample-list").replaceChildren(...buttons);
}

function labels(client) {
  const counts = client.class_counts;
  const cell = element("td");
  if (!counts) return cell;
  const most = Math.max(1, ...counts), width = 9, space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("width", width * counts.length);
  svg.setAttribute("height", 28);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", counts.map((n, i) => `${federation.classes[i]}: ${n}`).join(", "));
  counts.forEach((count, place) => {
    const height = Math.max(1, (26 * count) / most);
    const rect = document.createElementNS(space, "rect");
    for (const [name, value] of Object.entries({ x: place * width, y: 28 - height, width: width - 2, height })) {
      rect.setAttribute(name, value);
    }
    svg.append(rect);
  });
  cell.append(svg);
  return cell;
}

async function lookThrough(client) {
  const numbers = [...Array(Math.min(SHOWN, client.samples)).keys()];
  const pictures = await Promise.all(numbers.map((number) => sample(client, number)));
  views[client.client] = pictures.map((picture) => URL.createObjectURL(picture));
}

function shift(client) {
  const cell = element("td", null, { class: "shift" });
  (views[client.client] || []).forEach((address, place) => {
    const image = element("img", null, { alt: `sample ${place + 1} as ${client.client} sees it` });
    image.src = address;
    cell.append(image);
  });
  cell.append(element("span", client.shift));
  return cell;
}

function showClients() {
  $("clients").replaceChildren(...federation.clients.map((client) => row([
    client.client, health(client), bar(client.share, `share of ${client.client}`), labels(client), shift(client),
  ])));
}

function health(client) {
  const peer = client.peer;
  if (!peer) return element("td", "not registered");
  const well = peer.available;
  const text = well ? `well, ${peer.milliseconds.toFixed(0)} ms` : peer.circuit === "open" ? "circuit open" : "down";
  return element("td", peer.reason ? `${text} (${peer.reason})` : text, { class: well ? "good" : "bad" });
}

async function refresh() {
  const found = await (await call("v1/federation")).json();
  const first = federation === null;
  federation = found;
  $("artifact").textContent = `artifact ${found.artifact}, features ${found.features}`;
  $("totals").textContent = `${found.decisions} decisions, ${found.abstained} abstentions; audit log: ` +
    `${found.audit.written} written, ${found.audit.dropped} dropped` + (found.audit.trouble ? " (cannot be written now)" : "");
  showClients();
  if (first) {
    $("consult").max = found.clients.length;
    const some = found.clients.filter((client) => client.samples > 0);
    $("samples").hidden = !some.length;
    $("sample-client").replaceChildren(...some.map((client) => element("option", client.client)));
    if (some.length) await showSamples();
    await Promise.all(some.map(lookThrough));
    showClients();
  }
}

async function traffic() {
  let answer = await (await call(`v1/traffic?after=${last}`)).json();
  if (answer.begun !== begun && last > 0) { // another process, which numbers from one again
    last = 0;
    answer = await (await call("v1/traffic")).json();
  }
  begun = answer.begun;
  const found = answer.decisions;
  if (!found.length) return;
  last = found[found.length - 1].number;
  const lines = found.slice(-50).reverse().map((one) => row([
    new Date(1000 * one.time).toLocaleTimeString(), one.action, one.client || "nobody",
    bar(one.probability, "probability"), one.samples > 1 ? `${one.samples} samples` : one.label || "", one.reason, one.failed,
    element("td", one.milliseconds.toFixed(1), { class: "number" }),
  ]));
  $("traffic").prepend(...lines);
  while ($("traffic").children.length > 50) $("traffic").lastElementChild.remove();
}

async function live() {
  if (!$("pause").checked && !document.hidden) {
    try { await shape(); await refresh(); await traffic(); } catch (error) { $("totals").textContent = error.message; }
  }
  setTimeout(live, 1000);
}

$("ask").addEventListener("submit", ask);
$("sample-client").addEventListener("change", showSamples);
$("file").addEventListener("change", () => {
  chosen = null;
  for (const other of $("sample-list").children) other.setAttribute("aria-pressed", "false");
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
  $("key-form").hidden = true;
  federation = null;
});
live();
