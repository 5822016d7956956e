"use strict";
// The answer to a query: first in words, then as bars, then every figure in a fold. Uses the helpers of console.js.

const LIKELIEST = 10; // clients whose log density ratios are listed
// Of a query that abstains for one of these, probabilities mean nothing.
const MEANINGLESS = ["a value is missing or infinite", "a value cannot be", "unlike the training data"];
const REASONS = { // why the router abstains, in words; others are shown as the gateway gives them
  "a value is missing or infinite": "A number of the query is missing or infinite.",
  "a value cannot be": "A value cannot be: it is marked in the form.",
  "no client is available": "No client can be asked now.",
  "unlike the training data": "The query is unlike the data of all clients, so no answer could be trusted.",
  "best client away": "The clients that know such data best are away.",
  "unsure between clients": "The router is not sure enough whose data the query resembles.",
};

function labelSetSentence(answer, miss) {
  const certainty = `${Math.round(100 * (1 - miss))} %`;
  if (answer.label_set === null) {
    const why = answer.route.abstain ? "the router abstains" : "clients that the query may come from did not answer";
    return `No set of labels: ${why}.`;
  }
  if (!answer.label_set.length) {
    return `The set for ${certainty} certainty is empty: no label is typical enough. Choose a higher certainty.`;
  }
  return `With ${certainty} certainty${answer.label_set.length > 1 ? " one of" : ""}: ${answer.label_set.map(isolated).join(", ")}`;
}

// Who was asked, and who failed.
function askedSentence(first, best) {
  const asked = first.answered.map((entry) => isolated(entry.client));
  const failed = first.failed.map((entry) => ` ${isolated(entry.client)} failed: ${entry.reason}.`).join("");
  if (!asked.length) return (failed ? "Nobody answered." : "Nobody was asked.") + failed;
  if (asked.length > 1) {
    const weights = first.answered.map((entry) => `${isolated(entry.client)} (${percent(entry.weight)})`);
    return `${weights.slice(0, -1).join(", ")} and ${weights[weights.length - 1]} were asked; their answers count so much.` +
      failed;
  }
  if (!first.fallback) return `${asked[0]} was asked.${failed}`;
  return `${asked[0]} (${percent(first.client_probability)}) was asked in place of ${isolated(best.client)}, which ` +
    `${best.available ? "failed" : "is away"}.${failed}`;
}

// Why: whose data the query resembles, or by the rule of competence, who is likely to be right.
function originSentence(route, rule) {
  const [best, second] = route.ranked;
  if (rule === "competence") {
    const right = route.right_probability === null ? "" :
      ` Its answer is right with a probability of ${percent(route.right_probability)}.`;
    return `${isolated(route.client || best.client)} is the most likely to answer rightly.${right}`;
  }
  const next = second ? `; the next is ${isolated(second.client)} with ${percent(second.probability)}` : "";
  return `With a probability of ${percent(best.probability)} the query comes from the data of ${isolated(best.client)}${next}.`;
}

// Why the router abstains.
function reasonSentence(route) {
  const away = route.away.find((entry) => entry.client === route.ranked[0].client);
  if (route.reason === "best client away" && away) {
    return `${isolated(away.client)} knows such data best and is away: ${away.reason}. The options let you ask the next client.`;
  }
  return REASONS[route.reason] || `${route.reason}.`;
}

// What is known of the answer beside it: every figure and name of the protocol.
function figures(content, route, rule) {
  const first = content.answers ? content.answers[0] : { answered: [], failed: [] };
  const weight = (entry) => (first.answered.length > 1 ? `weight ${percent(entry.weight)}, ` : "");
  const reasons = (clients) => clients.map((entry) => `${isolated(entry.client)}: ${entry.reason}`).join(", ");
  return [
    ["Routing rule", "routing rule", rule],
    ["Margin", "margin", route.margin.toFixed(3)],
    ["Log density ratio", "log density ratio", route.ranked.slice(0, LIKELIEST).map((entry) =>
      `${isolated(entry.client)} ${entry.log_density_ratio.toFixed(2)}`).join(", ")],
    ["Answered", "client", first.answered.map((entry) =>
      `${isolated(entry.client)} (${weight(entry)}${entry.milliseconds.toFixed(0)} ms)`).join(", ")],
    ["Failed", "fallback", reasons(first.failed)],
    ["Away", "away", reasons(route.away)],
    ["Artifact", "artifact", content.artifact],
    ["Request", null, content.request_id],
  ].filter(([, , value]) => value);
}

// A term's name, with its value in a table.
function termName(term) {
  if (!("value" in term)) return term.name;
  return `${term.name} ${term.value === null ? "missing" : isolated(String(term.value))}`;
}

function termBar(name, value, largest, text) {
  const cell = element("td", null, { class: "number" });
  const style = { class: value < 0 ? "against" : "for", "aria-label": `${name}: ${text}` };
  cell.append(element("meter", text, { min: 0, max: 1, value: Math.abs(value) / largest, ...style }), text);
  return row([name, cell]);
}

// What made the client likelier than the next one, or the query unlike the training data.
function showWhy(route) {
  const why = route.why;
  $("why").hidden = !why;
  if (!why) return;
  const [client, over] = [why.client, why.over].map(isolated);
  if (why.unlike.length) {
    $("why-title").textContent = "What makes the query strange";
    $("why-caption").textContent = "Shares of its distance from the training data";
    $("why-unit").textContent = "Share";
    $("why-terms").replaceChildren(...why.unlike.map((term) => termBar(termName(term), term.share, 1, percent(term.share))));
    return;
  }
  $("why-title").textContent = `Why ${client} and not ${over}`;
  $("why-caption").textContent = `Plus speaks for ${client}, minus for ${over}; the sum is ${signed(why.log_odds)}`;
  $("why-unit").textContent = "Log-odds";
  const others = [["everything else", why.rest], ["an average query", why.baseline], ["sizes of the clients", why.sizes]];
  const shown = [...why.terms.map((term) => [termName(term), term.log_odds]), ...others].filter(([, value]) => value);
  const largest = Math.max(...shown.map(([, value]) => Math.abs(value)));
  $("why-terms").replaceChildren(...shown.map(([name, value]) => termBar(name, value, largest, signed(value))));
}

function signed(value) {
  return (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(2);
}

function showPicture(query, label) {
  const image = $("asked-picture");
  if (image.src) URL.revokeObjectURL(image.src);
  $("asked").hidden = !query.picture;
  if (query.picture) image.src = URL.createObjectURL(query.picture);
  const known = query.label !== null && query.label !== undefined;
  const right = known && label !== null ? (label === query.label ? ": the answer is right" : ": the answer is wrong") : "";
  $("truth").textContent = known ? `True label ${isolated(query.label)}${right}` : "";
  $("truth").className = right ? (label === query.label ? "good" : "bad") : "";
}

// ``query`` is what was asked: its picture and true label, where they are known.
function showResult(content, options, query) {
  const first = content.answers ? content.answers[0] : content.decisions[0];
  const route = first.route || first;
  const label = first.label === undefined ? null : first.label;
  const sentences = [];
  if (label !== null) $("headline").textContent = `Answer: ${isolated(label)}, ${percent(first.label_probability)} sure`;
  else if (route.abstain) $("headline").textContent = `No answer: ${route.reason}`;
  else $("headline").textContent = `${route.fallback ? "Falls back to" : "Belongs to"} ${isolated(route.client)}`;
  if (route.abstain) sentences.push((label === null ? "" : "The router abstains. ") + reasonSentence(route));
  if (content.answers) sentences.push(askedSentence(first, route.ranked[0]));
  if (!MEANINGLESS.includes(route.reason)) sentences.push(originSentence(route, options.rule));
  $("detail").textContent = sentences.join(" ");
  $("label-set").textContent = options.label_miss ? labelSetSentence(first, options.label_miss) : "";
  showPicture(query, label);
  $("state").hidden = route.ranked.every((entry) => entry.available);
  $("ranked").replaceChildren(...route.ranked.slice(0, MANY).map((entry) => row([
    entry.client,
    bar(entry.probability, `client probability of ${entry.client}`),
    ...($("state").hidden ? [] : [element("td", entry.available ? "" : "away", { class: "bad" })]),
  ])));
  $("classes-table").hidden = !first.probabilities;
  if (first.probabilities) {
    const likeliest = Object.entries(first.probabilities).sort(([, a], [, b]) => b - a).slice(0, MANY);
    $("classes").replaceChildren(...likeliest.map(([name, value]) =>
      row([name, bar(value, `label probability of ${name}`)])));
  }
  showWhy(route);
  $("figures").replaceChildren(...figures(content, route, options.rule).flatMap(([title, key, value]) =>
    [element("dt", title, key ? { "data-term": key } : {}), element("dd", value)]));
  explainTerms($("figures"));
  $("result").hidden = false;
}
