"use strict";
// The console. It shows only data of the gateway that it was loaded from, and sets text as text, never as markup.

let key = sessionStorage.getItem("key") || "";
let federation = null;
let takesPictures = null; // whether the router takes pictures; otherwise it takes rows of numbers; null: not known
let rowLength = null; // how many numbers a row has
let artifactShown = null; // the artifact whose clients and samples the page offers
let refused = false; // whether the key may not see the federation's figures: nothing is fetched until there is another
let chosenSample = null; // the chosen sample, if any: its picture as a Blob and its true label
let lastNumber = 0; // of the latest decision shown
let gatewayStart = null; // start time of the gateway that numbers the decisions
const SAMPLES_SHOWN = 3; // per client, in the federation's table
const MANY = 30; // clients or labels in a table
const TIMEOUT = { GET: 10, POST: 60 }; // seconds; a gateway answers a query or gives up within 40
let sampleUrls = {}; // URLs of those samples, by client

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (key) headers.Authorization = "Bearer " + key;
  const signal = AbortSignal.timeout(1000 * TIMEOUT[options.method || "GET"]);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal });
  } catch {
    throw new Error("The gateway does not answer."); // the browser's own words differ, and say less
  }
  if (answer.status === 401 || answer.status === 403) $("key-form").hidden = false;
  if (!answer.ok) {
    let text = "the gateway answered " + answer.status, fields = [];
    try {
      const content = await answer.json();
      text = content.error || text;
      fields = content.fields || [];
    } catch { /* not JSON: show the status */ }
    if (answer.status === 401 && !key) text = "The gateway wants an API key: enter it at the top of the page.";
    throw Object.assign(new Error(text), { fields, status: answer.status });
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
  const { shape } = about.inputs[0], pictures = shape.length === 4;
  const table = pictures ? null : await (await call("v1/schema")).json();
  showTableForm(table && table.schema ? table : null);
  takesPictures = pictures;
  rowLength = shape[1];
  $("row-length").textContent = rowLength;
  $("picture-input").hidden = !pictures;
  $("numbers-input").hidden = pictures || rowFields !== null;
  $("row-input").hidden = rowFields === null;
}

function typedNumbers() {
  const words = $("numbers").value.split(/[\s,;]+/).filter(Boolean);
  const wrong = words.find((word) => !Number.isFinite(Number(word)));
  if (wrong !== undefined) throw new Error(`'${wrong}' is no number.`);
  if (words.length !== rowLength) throw new Error(`Give ${rowLength} numbers: these are ${words.length}.`);
  return words.map(Number);
}

async function ask(event) {
  event.preventDefault();
  $("error").textContent = "";
  showFieldProblems([]);
  $("send").disabled = true;
  $("result").setAttribute("aria-busy", "true"); // hides the answer before, which may be mistaken for this query's
  try {
    const action = $("action").value;
    const options = { rule: $("rule").value };
    if (options.rule !== "competence") options.why = true; // of that rule there are no terms
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
      const body = { ...(rowFields ? { rows: [rowOfForm()] } : { inputs: [typedNumbers()] }), ...options };
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
    if (error.status === 401) $("key").focus();
    takesPictures = null; // another gateway may have taken this one's place, and take other queries
  } finally {
    $("send").disabled = false;
    $("result").removeAttribute("aria-busy");
  }
}

async function fetchSample(client, number) {
  return (await call(`v1/samples/${encodeURIComponent(client.client)}/${number}`)).blob();
}

async function showSamples() {
  const client = federation.clients.find((entry) => entry.client === $("sample-client").value);
  chosenSample = null;
  for (const old of $("sample-list").querySelectorAll("img")) URL.revokeObjectURL(old.src);
  $("sample-list").replaceChildren();
  const pictures = await Promise.all([...Array(client.samples).keys()].map((number) => fetchSample(client, number)));
  if ($("sample-client").value !== client.client) return; // another was chosen meanwhile
  $("sample-list").replaceChildren(...pictures.map((picture, number) => {
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
    return button;
  }));
}

function labelChart(client) {
  const counts = client.class_counts;
  const cell = element("td");
  if (!counts) return cell;
  const largest = Math.max(1, ...counts), width = Math.min(9, 180 / counts.length), namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("width", width * counts.length);
  svg.setAttribute("height", 28);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", counts.map((n, i) => `${federation.classes[i]}: ${n}`).join(", "));
  counts.forEach((count, place) => {
    const height = Math.max(1, (26 * count) / largest);
    const rect = document.createElementNS(namespace, "rect");
    for (const [name, value] of Object.entries({ x: place * width, y: 28 - height, width: 0.78 * width, height })) {
      rect.setAttribute(name, value);
    }
    svg.append(rect);
  });
  cell.append(svg);
  return cell;
}

// Of the clients in the table: a search shows others than before.
async function loadShownSamples() {
  const missing = clientsShown().filter((client) => client.samples > 0 && !sampleUrls[client.client]);
  if (!missing.length) return;
  await Promise.all(missing.map(loadSamples));
  showClients();
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
  replaceRows($("clients"), shown.map((client) => row([
    client.client, healthCell(client), bar(client.share, `share of ${client.client}`), labelChart(client),
    shiftCell(client),
  ])));
}

function healthCell(client) {
  const upstream = client.peer;
  if (federation.lost) return element("td", "unknown");
  if (!upstream) return element("td", "not registered");
  const { available, circuit, milliseconds, reason } = upstream;
  const speed = milliseconds ? `, ${milliseconds.toFixed(0)} ms` : ""; // none before its first answer
  const text = available ? "well" + speed : circuit === "open" ? "circuit open" : "down";
  return element("td", reason ? `${text} (${reason})` : text, { class: available ? "good" : "bad" });
}

async function showFederation() {
  const content = await (await call("v1/federation")).json();
  federation = { ...content, seen: new Date() };
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
  if (artifactShown !== content.artifact) {
    if (artifactShown !== null) takesPictures = null; // another router may take other queries
    $("consult").max = content.clients.length;
    const withSamples = content.clients.filter((client) => client.samples > 0);
    $("samples").hidden = !withSamples.length;
    $("sample-client").replaceChildren(...withSamples.map((client) => element("option", client.client)));
    for (const url of Object.values(sampleUrls).flat()) URL.revokeObjectURL(url);
    sampleUrls = {};
    if (withSamples.length) await showSamples();
    artifactShown = content.artifact; // last: after a failure it is tried again
  }
  await loadShownSamples();
}

// Why the figures are not there, or from when they are; null: all is well.
function showTrouble(error) {
  let text = error ? error.message : "";
  refused = Boolean(error) && (error.status === 401 || error.status === 403);
  if (refused) {
    federation = artifactShown = null;
    $("samples").hidden = true;
  } else if (error && federation !== null) {
    federation.lost = true;
    text += ` The figures below are from ${federation.seen.toLocaleTimeString()}.`;
    showClients();
  }
  if ($("trouble").textContent !== text) $("trouble").textContent = text; // read out once
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
      if (!refused) {
        await showFederation();
        await showTraffic();
        showTrouble(null);
      }
    } catch (error) {
      showTrouble(error);
    }
    for (const place of ["federation-figures", "traffic-section"]) $(place).hidden = federation === null;
  }
  setTimeout(refresh, 1000);
}

loadTerms("console/terms.json");
$("ask").addEventListener("submit", ask);
$("client-search").addEventListener("input", showClients);
$("sample-client").addEventListener("change", () => showSamples().catch((error) => { $("error").textContent = error.message; }));
$("file").addEventListener("change", () => {
  chosenSample = null;
  for (const other of $("sample-list").children) other.setAttribute("aria-pressed", "false");
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
  $("key-form").hidden = true;
  refused = false;
  federation = null;
});
// A field of a closed fold would be refused without a word.
$("ask").addEventListener("invalid", () => { $("options").open = true; }, true);
refresh();
