"use strict";
// The form for one row of a table: a field for every raw column of the router's schema.

let rowFields = null; // by column name: { input, unknown, problem }; null where the router has no schema
let tableShown = null; // what the form was made of

function fieldFor(column, place) {
  const id = `field-${place}`, title = column.title || column.name;
  const box = element("div", null, { class: "field" });
  const label = element("label", title, { for: id });
  if (column.unit) label.append(element("span", ` (${column.unit})`, { class: "unit" }));
  const problem = element("p", "", { id: `${id}-problem`, class: "problem" });
  let input, unknown = null;
  if (column.kind === "category") {
    input = element("select", null, { id });
    input.append(element("option", "choose", { value: "" }));
    for (const [code, name] of Object.entries(column.categories)) input.append(element("option", name, { value: code }));
    if (column.missing) input.append(element("option", "unknown", { value: "unknown" }));
    box.append(label, input);
  } else {
    const low = column.minimum ?? null, high = column.maximum ?? null;
    const range = low !== null && high !== null ? `${low} to ${high}` : "";
    input = element("input", null, { id, inputmode: "decimal", autocomplete: "off", placeholder: range });
    box.append(label, input);
    if (column.missing) {
      unknown = element("input", null, { id: `${id}-unknown`, type: "checkbox" });
      unknown.addEventListener("change", () => { input.disabled = unknown.checked; });
      box.append(unknown, element("label", "unknown", { for: unknown.id, "aria-label": `${title} is unknown` }));
      unknown.setAttribute("aria-label", `${title} is unknown`);
    }
  }
  input.setAttribute("aria-describedby", problem.id);
  box.append(problem);
  rowFields.set(column.name, { input, unknown, problem, missing: column.missing === true });
  return box;
}

function fillRow(example) {
  for (const [name, field] of rowFields) {
    const value = example[name];
    const gap = value === null || value === undefined;
    if (field.unknown) {
      field.unknown.checked = gap;
      field.input.disabled = gap;
      field.input.value = gap ? "" : value;
    } else {
      field.input.value = gap ? "unknown" : value;
    }
  }
  showFieldProblems([]);
}

// What is filled in stays while the table does. ``about`` is null where the router has no schema.
function showTableForm(about) {
  if (JSON.stringify(about) === tableShown) return;
  tableShown = JSON.stringify(about);
  rowFields = about ? new Map() : null;
  if (!about) return;
  $("fields").replaceChildren(...about.schema.columns.map(fieldFor));
  $("examples").replaceChildren(...about.examples.map((example, place) => {
    const button = element("button", `Example ${place + 1}`, { type: "button" });
    button.addEventListener("click", () => fillRow(example));
    return button;
  }));
}

// The row as the gateway takes it. An empty field is an error here: only "unknown" means a missing value.
function rowOfForm() {
  const row = {}, empty = [];
  for (const [name, field] of rowFields) {
    const gap = field.unknown ? field.unknown.checked : field.input.value === "unknown";
    if (!gap && field.input.value.trim() === "") {
      empty.push({ column: name, problem: "give a value" + (field.missing ? ", or choose unknown" : "") });
    }
    row[name] = gap ? null : field.input.value.trim();
  }
  if (empty.length) throw Object.assign(new Error("Some fields are empty."), { fields: empty });
  return row;
}

// Shows each problem beside its field, and goes to the first one.
function showFieldProblems(problems) {
  if (!rowFields) return;
  for (const { input, problem } of rowFields.values()) {
    problem.textContent = "";
    input.removeAttribute("aria-invalid");
  }
  for (const { column, problem } of [...problems].reverse()) {
    const field = rowFields.get(column);
    if (!field) continue;
    field.problem.textContent = problem;
    field.input.setAttribute("aria-invalid", "true");
    field.input.focus();
  }
}
