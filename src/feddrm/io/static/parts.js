"use strict";
// Parts of every page. Text is set as text, never as markup.

const $ = (id) => document.getElementById(id);

function element(name, text, attributes = {}) {
  const created = document.createElement(name);
  if (text !== undefined && text !== null) created.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, value);
  return created;
}

// A value that is not 0 or 1 never looks as if it were.
function percent(value) {
  if (value > 0 && value < 5e-6) return "< 0.001 %";
  if (value < 1 && value > 1 - 5e-6) return "> 99.999 %";
  const near = (value > 0 && value < 0.001) || (value < 1 && value > 0.999);
  return (100 * value).toFixed(near ? 3 : 1) + " %";
}

// A name within a sentence. One that is written from right to left would take the numbers beside it to its other side.
function isolated(name) {
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name;
}

function row(cells) {
  const line = element("tr");
  cells.forEach((cell, place) => {
    if (cell instanceof Node) line.append(cell);
    else line.append(place === 0 ? element("th", cell, { scope: "row" }) : element("td", cell));
  });
  return line;
}

// Rows that are already there stay, and with them a reader's place and selection.
function replaceRows(body, rows) {
  const made = element("tbody");
  made.append(...rows);
  if (made.innerHTML !== body.innerHTML) body.replaceChildren(...rows);
}

// Terms: an element with data-term shows the term's meaning under the pointer and when it has the focus.
let terms = {};

function explainTerms(place = document) {
  for (const word of place.querySelectorAll("[data-term]")) {
    const meaning = terms[word.dataset.term];
    if (!meaning || word.classList.contains("term")) continue;
    word.classList.add("term");
    word.tabIndex = 0;
    word.setAttribute("aria-description", meaning);
    for (const event of ["pointerenter", "focus"]) word.addEventListener(event, () => showTip(word, meaning));
    for (const event of ["pointerleave", "blur"]) word.addEventListener(event, () => { $("tip").hidden = true; });
  }
}

// Below the word, within the window; above it where there is no room.
function showTip(word, meaning) {
  const tip = $("tip"), place = word.getBoundingClientRect();
  tip.textContent = meaning;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), below = place.bottom + 6;
  tip.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${below + height < window.innerHeight ? below : place.top - height - 6}px`;
}

async function loadTerms(path) {
  document.body.append(element("div", null, { id: "tip", hidden: "", "aria-hidden": "true" }));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") $("tip").hidden = true; });
  terms = await (await fetch(path)).json();
  explainTerms();
}
