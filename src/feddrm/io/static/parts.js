"use strict";
// Parts of every page. Text is set as text, never as markup.

const $ = (id) => document.getElementById(id);

function element(name, text, attributes = {}) {
  const created = document.createElement(name);
  if (text !== undefined && text !== null) created.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, value);
  return created;
}

function percent(value) {
  return (100 * value).toFixed(value > 0 && value < 0.001 ? 3 : 1) + " %";
}

function row(cells) {
  const line = element("tr");
  cells.forEach((cell, place) => {
    if (cell instanceof Node) line.append(cell);
    else line.append(place === 0 ? element("th", cell, { scope: "row" }) : element("td", cell));
  });
  return line;
}
