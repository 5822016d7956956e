"use strict";
// The console. It shows only data of the gateway that it was loaded from, and sets text as text, never as markup.

let key = sessionStorage.getItem("key") || "";
let federation = null;
let takesPictures = null; // whether the router takes pictures; otherwise it takes rows of numbers
let chosenSample = null; // the chosen sample, if any: its picture as a Blob and its true label
let lastNumber = 0; // of the latest decision shown
let gatewayStart = null; // start time of the gateway that numbers the decisions
const SAMPLES_SHOWN = 3; // per client, in the federation's table
const MANY = 30; // clients in a table
const sampleUrls = {}; // URLs of those samples, by client

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (key) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401 || answer.status === 403) $("key-form").hidden = false;
  if (!answer.ok) {
    let text = "the gateway answered " + answer.status, fields = [];
    try {
      const content = await answer.json();
      text = content.error || text;
      fields = content.fields || [];
    } catch { /* not JSON: show the status */ }
    throw Object.assign(new Error(text), { fields });
  }
  return answer;
}

function bar(value, label) {
  const cell = element("td", null, { class: "number" });
  const meter = element("meter", percent(value), { min: 0, max: 1, value, "aria-label": label });
  cell.append(meter, percent(value));
  return cell;
}

// Needs no key: a caller who may ask need not be allowed to see the federation's figures.
async function showInputForm() {
  if (takesPictures !== null) return;
  const about = await (await call("v2/models/router")).json();
  const pictures = about.inputs[0].shape.length === 4;
  const table = pictures ? null : await (await call("v1/schema")).json();
  if (table && table.schema) showTableForm(table);
  takesPictures = pictures;
  $("picture-input").hidden = !pictures;
  $("numbers-input").hidden = pictures || rowFields !== null;
  $("row-input").hidden = rowFields === null;
}

async function ask(event) {
  event.preventDefault();
  $("error").textContent = "";
  showFieldProblems([]);
  $("send").disabled = true;
  try {
    const action = $("action").value;
    const options = { rule: $("rule").value };
    if ($("away").value) options.max_away = $("away").value;
    if (action === "predict") {
      Object.assign(options, { consult: $("consult").value, abstain: $("abstain").value });
      if ($("label-miss").value) options.label_miss = $("label-miss").value;
    }
    let answer, query = {};
    await showInputForm();
    if (takesPictures) {
      query = $("file").files[0] ? { picture: $("file").files[0] } : chosenSample;
      if (!query) throw new Error("Choose a picture or a sample first.");
      const picture = query.picture;
      answer = await call(`v1/${action}?${new URLSearchParams(options)}`, {
        method: "POST", body: picture, headers: { "Content-Type": picture.type || "image/png" },
      });
    } else {
      const numbers = $("numbers").value.split(/[\s,;]+/).filter(Boolean).map(Number);
      const body = rowFields ? { rows: [rowOfForm()], ...options } : { inputs: [numbers], ...options };
      for (const name of ["consult", "max_away", "label_miss"]) if (body[name]) body[name] = Number(body[name]);
      answer = await call(`v1/${action}`, {
        method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
      });
    }
    const content = await answer.json();
    showResult(content, options, query);
    const first = content.answers ? content.answers[0].route : content.decisions[0];
    showFieldProblems(first.flags);
  } catch (error) {
    $("result").hidden = true;
    $("error").textContent = error.message;
    showFieldProblems(error.fields || []);
  } finally {
    $("send").disabled = false;
  }
}

async function fetchSample(client, number) {
  return (await call(`v1/samples/${encodeURIComponent(client.client)}/${number}`)).blob();
}

async function showSamples() {
  const client = federation.clients.find((entry) => entry.client === $("sample-client").value);
  const buttons = [];
  for (let number = 0; number < client.samples; number += 1) {
    const picture = await fetchSample(client, number);
    const image = element("img", null, { alt: `sample ${number + 1} of ${client.client}` });
    image.src = URL.createObjectURL(picture);
    const button = element("button", null, { type: "button", "aria-pressed": "false" });
    button.append(image);
    button.addEventListener("click", () => {
      for (const other of $("sample-list").children) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", "true");
      $("file").value = "";
      chosenSample = { picture, label: client.sample_labels[number] };
    });
    buttons.push(button);
  }
  for (const old of $("sample-list").querySelectorAll("img")) URL.revokeObjectURL(old.src);
  $("sample-list").replaceChildren(...buttons);
}

function labelChart(client) {
  const counts = client.class_counts;
  const cell = element("td");
  if (!counts) return cell;
  const largest = Math.max(1, ...counts), width = 9, namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("width", width * counts.length);
  svg.setAttribute("height", 28);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", counts.map((n, i) => `${federation.classes[i]}: ${n}`).join(", "));
  counts.forEach((count, place) => {
    const height = Math.max(1, (26 * count) / largest);
    const rect = document.createElementNS(namespace, "rect");
    for (const [name, value] of Object.entries({ x: place * width, y: 28 - height, width: width - 2, height })) {
      rect.setAttribute(name, value);
    }
    svg.append(rect);
  });
  cell.append(svg);
  return cell;
}

async function loadSamples(client) {
  const numbers = [...Array(Math.min(SAMPLES_SHOWN, client.samples)).keys()];
  const pictures = await Promise.all(numbers.map((number) => fetchSample(client, number)));
  sampleUrls[client.client] = pictures.map((picture) => URL.createObjectURL(picture));
}

function shiftCell(client) {
  const cell = element("td", null, { class: "shift" });
  (sampleUrls[client.client] || []).forEach((url, place) => {
    const image = element("img", null, { alt: `sample ${place + 1} as ${client.client} sees it` });
    image.src = url;
    cell.append(image);
  });
  cell.append(element("span", client.shift));
  return cell;
}

// Of many clients, those that are down and then those with most traffic; a search shows others.
function clientsShown() {
  const words = $("client-search").value.trim().toLowerCase();
  const found = federation.clients.filter((client) => client.client.toLowerCase().includes(words));
  const down = (client) => Number(Boolean(client.peer) && !client.peer.available);
  if (found.length > MANY) found.sort((a, b) => down(b) - down(a) || b.share - a.share);
  return found.slice(0, MANY);
}

function showClients() {
  const shown = clientsShown();
  $("client-find").hidden = federation.clients.length <= MANY;
  $("clients-shown").textContent = `${shown.length} of ${federation.clients.length} clients`;
  $("clients").replaceChildren(...shown.map((client) => row([
    client.client, healthCell(client), bar(client.share, `share of ${client.client}`), labelChart(client),
    shiftCell(client),
  ])));
}

function healthCell(client) {
  const upstream = client.peer;
  if (!upstream) return element("td", "not registered");
  const { available, circuit, milliseconds, reason } = upstream;
  const text = available ? `well, ${milliseconds.toFixed(0)} ms` : circuit === "open" ? "circuit open" : "down";
  return element("td", reason ? `${text} (${reason})` : text, { class: available ? "good" : "bad" });
}

async function showFederation() {
  const content = await (await call("v1/federation")).json();
  const first = federation === null;
  federation = content;
  const audit = content.audit;
  $("artifact").textContent = content.artifact;
  $("features").textContent = content.features;
  $("audit").textContent = `${audit.written} written, ${audit.dropped} dropped` +
    (audit.trouble ? " (cannot be written now)" : "");
  $("totals").textContent = `${content.decisions} ${content.decisions === 1 ? "query" : "queries"} so far, ${content.abstained} without an answer.` +
    (audit.trouble ? " The audit log cannot be written now." : "");
  showChallenger(content.challenger);
  showDrift(content.drift);
  if (content.outcomes) await showOutcomes();
  showClients();
  if (first) {
    $("consult").max = content.clients.length;
    const withSamples = content.clients.filter((client) => client.samples > 0);
    $("samples").hidden = !withSamples.length;
    $("sample-client").replaceChildren(...withSamples.map((client) => element("option", client.client)));
    if (withSamples.length) await showSamples();
    await Promise.all(clientsShown().filter((client) => client.samples > 0).map(loadSamples));
    showClients();
  }
}

async function showTraffic() {
  let content = await (await call(`v1/traffic?after=${lastNumber}`)).json();
  if (content.begun !== gatewayStart && lastNumber > 0) { // a restarted gateway numbers from one again
    lastNumber = 0;
    content = await (await call("v1/traffic")).json();
  }
  gatewayStart = content.begun;
  const decisions = content.decisions;
  if (!decisions.length) return;
  lastNumber = decisions[decisions.length - 1].number;
  const lines = decisions.slice(-50).reverse().map((entry) => row([
    new Date(1000 * entry.time).toLocaleTimeString(), entry.action, entry.client || "nobody",
    bar(entry.probability, "client probability"), entry.samples > 1 ? `${entry.samples} samples` : entry.label || "",
    entry.reason, entry.failed, element("td", entry.milliseconds.toFixed(1), { class: "number" }),
  ]));
  $("traffic").prepend(...lines);
  while ($("traffic").children.length > 50) $("traffic").lastElementChild.remove();
}

async function refresh() {
  if (!$("pause").checked && !document.hidden) {
    try {
      await showInputForm();
      await showFederation();
      await showTraffic();
    } catch (error) {
      $("totals").textContent = error.message;
    }
  }
  setTimeout(refresh, 1000);
}

loadTerms("console/terms.json");
$("ask").addEventListener("submit", ask);
$("client-search").addEventListener("input", showClients);
$("sample-client").addEventListener("change", showSamples);
$("file").addEventListener("change", () => {
  chosenSample = null;
  for (const other of $("sample-list").children) other.setAttribute("aria-pressed", "false");
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
  $("key-form").hidden = true;
  federation = null;
});
refresh();
