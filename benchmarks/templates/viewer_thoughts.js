// ---- Part 7: what was behind an action: gates, what the environment reported, notes, language models

// What is open stays open from step to step; a hit of the search opens what holds it.
const open = { beliefs: false, gates: true, told: true, notes: false, calls: true, prompt: false, settings: false };
const HOLDS = { beliefs: ["facts"], told: ["notes"], notes: ["notes"], calls: ["prompts", "replies"], prompt: ["prompts"] };
let hitScopes = new Set(); // of the step that is shown

function folded(kind, label, contents) {
  const box = make("details", kind, make("summary", "", label));
  const fill = () => {
    if (box.open && box.childElementCount === 1) box.append(contents());
  };
  box.open = open[kind] || (HOLDS[kind] || []).some((scope) => hitScopes.has(scope));
  fill();
  box.addEventListener("toggle", fill);
  box.firstChild.addEventListener("click", () => {
    open[kind] = !box.open; // as it will be
  });
  return box;
}

function named(record, pairs) {
  const list = make("dl", "named");
  for (const [name, value] of pairs)
    list.append(make("div", "", make("dt", "", isolated(textOf(record, name))), make("dd", "", rich(textOf(record, value), search.pattern))));
  return list;
}

// ---- Gates

const GATE_NAMES = { p: "p", q: "q", agreement: "r" };

function gateNumber(record, name, { value, threshold, source, enough }) {
  const letter = GATE_NAMES[name];
  const bar = make("span", "bar", make("span", `fill ${enough === false ? "low" : "high"}`));
  bar.setAttribute("aria-hidden", "true");
  bar.firstChild.style.width = `${100 * Math.max(0, Math.min(1, value))}%`;
  if (threshold !== null) {
    const line = explain(make("span", "threshold"), "threshold");
    line.style.insetInlineStart = `${100 * Math.max(0, Math.min(1, threshold))}%`;
    bar.append(line);
  }
  const symbol = name === "agreement" ? ["≥", "<"] : [">", "≤"];
  const limit = threshold === null ? "" : ` ${enough === false ? symbol[1] : symbol[0]} ${decimal(threshold)}`;
  const verdict = enough === null ? "" : enough ? "enough" : "not enough";
  const words = make("span", "gate-value", explain(make("span", "", `${letter} = ${decimal(value, 3)}`), letter));
  if (threshold !== null) words.append(explain(make("span", "", limit), "threshold"));
  const more = [verdict, source].filter(Boolean).join(", ");
  return make("li", "", words, bar, make("span", "model", more));
}

function gatesBox(record, gates) {
  const said = (name) => (gates[name] === undefined ? null : textOf(record, gates[name]));
  const verdict = gates.revised === undefined ? [] : [gates.revised ? "revised" : "kept"];
  const box = make("section", "gates", make("h4", "", "Decision ", badges(verdict)));
  const list = make("dl", "course");
  const action = (name) => make("code", "", rich(said(name), search.pattern));
  if (said("draft") !== null) list.append(term("drafted", action("draft")));
  if (said("reflected") !== null) list.append(term("on reflection", action("reflected"), gates.changed === false ? " (the same)" : ""));
  if (said("taken") !== null) list.append(term("taken", action("taken")));
  if (said("decision") !== null) list.append(term("the model decided", isolated(said("decision"))));
  if (said("path") !== null && said("path") !== "reflected") list.append(term("path", isolated(said("path").replaceAll("_", " "))));
  if (said("context") !== null && said("context") !== "none") list.append(term("future predicted by", isolated(said("context"))));
  if (!gates.gated) list.append(term("gate", "switched off"));
  if (list.childElementCount) box.append(list);
  const numbers = Object.entries(gates.numbers || {}).filter(([name]) => Object.hasOwn(GATE_NAMES, name));
  if (numbers.length) box.append(make("ul", "gate-numbers", ...numbers.map(([name, one]) => gateNumber(record, name, one))));
  return box;
}

// ---- Tokens and their probabilities

const PROBABLE = [0.9, 0.5, 0.1, 0.01, 0];
const shade = (logprob) => PROBABLE.findIndex((least) => Math.exp(logprob) >= least);
const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return p >= 0.1 ? `${p.toFixed(1)} %` : `${p.toExponential(1)} %`;
};

function legend() {
  const list = make("ul", "token-legend");
  list.setAttribute("aria-label", "Colours of tokens by probability");
  list.append(make("li", "", "Probability of a token:"));
  const words = ["90 % or more", "50 % or more", "10 % or more", "1 % or more", "less"];
  words.forEach((word, i) => list.append(make("li", "", make("span", `token p${i}`, "abc"), ` ${word}`)));
  return list;
}

// The tokens of a reply; the mouse, or the arrow keys where they have the focus, show each one's value.
function tokenView(record, call) {
  const values = call.logprobs;
  const words = call.pieces ? call.pieces.map((piece) => textOf(record, piece)) : values.map((_, i) => `#${call.ids ? call.ids[i] : i + 1}`);
  const line = make("div", "said tokens");
  const readout = make("p", "readout");
  words.forEach((word, i) => {
    const token = make("span", `token p${shade(values[i])}`, word || "·");
    token.dataset.at = String(i);
    line.append(token);
    if (!call.pieces) line.append(" ");
  });
  let current = -1;
  const point = (i) => {
    const spans = line.querySelectorAll(".token");
    if (spans[current]) spans[current].classList.remove("current");
    current = i;
    spans[i].classList.add("current");
    readout.replaceChildren(`token ${i + 1} of ${words.length} `, make("code", "", JSON.stringify(words[i])), ` ${percent(values[i])}, log-probability ${decimal(values[i], 4)}`);
  };
  line.tabIndex = 0;
  line.setAttribute("role", "group");
  line.setAttribute("aria-label", "Tokens of the reply; arrow keys show each one's probability");
  readout.setAttribute("aria-live", "polite");
  line.addEventListener("mouseover", (event) => event.target.dataset.at && point(Number(event.target.dataset.at)));
  line.addEventListener("focus", () => words.length && point(Math.max(current, 0)));
  line.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    point(Math.max(0, Math.min(words.length - 1, current + by)));
  });
  const mean = values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
  readout.append(`${plural(words.length, "token")}, on average ${percent(mean)} (log-probability ${decimal(mean, 3)})`);
  return make("div", "token-box", line, readout);
}

// Options that were scored, the most probable first, as shares of all.
function optionView(record, call) {
  const values = call.logprobs;
  const most = Math.max(...values);
  const weights = values.map((value) => Math.exp(value - most));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]);
  const list = make("ol", "options");
  for (const i of order.slice(0, 50)) {
    const bar = make("span", "bar", make("span", "fill"));
    bar.firstChild.style.width = `${(100 * weights[i]) / sum}%`;
    const name = call.pieces ? rich(textOf(record, call.pieces[i]), search.pattern) : `option ${i + 1}`;
    list.append(make("li", "", make("code", "", name), bar, make("span", "model", `${((100 * weights[i]) / sum).toFixed(1)} %, log-probability ${decimal(values[i], 3)}`)));
  }
  if (order.length > 50) list.append(make("li", "nothing", `${order.length - 50} less probable ones are not shown.`));
  return list;
}

// ---- Calls to language models

function prompt(record, call) {
  const count = call.messages.length;
  return folded("prompt", `Prompt: ${plural(count, "message")}`, () => {
    const box = make("div", "messages");
    for (const [role, said] of call.messages)
      box.append(make("p", "role", isolated(textOf(record, role))), make("div", "said", rich(textOf(record, said), search.pattern)));
    return box;
  });
}

const kindOf = (record, call) => (call.kind === undefined ? "" : textOf(record, call.kind));

const isScored = (record, call) => ["score", "words"].includes(kindOf(record, call));
const hasTokens = (record, call) => Boolean(call.logprobs && call.logprobs.length) && !isScored(record, call);

function rawReply(record, call) {
  const said = make("div", "said");
  if (call.prefix !== undefined) said.append(make("span", "given", rich(textOf(record, call.prefix), search.pattern)));
  said.append(rich(textOf(record, call.text), search.pattern));
  return said;
}

function callItem(record, call) {
  const [read, written] = call.tokens;
  const facts = [`${read} tokens read`];
  if (written) facts.push(`${written} written`);
  const purpose = call.purpose === undefined ? "(no purpose)" : textOf(record, call.purpose);
  const head = make("p", "call-head", make("strong", "", isolated(purpose)), " ", make("span", "badge", isolated(kindOf(record, call))), " ", make("span", "model", facts.join(", ")));
  if (call.adapter !== undefined) head.append(" ", make("span", "model", "adapter ", isolated(textOf(record, call.adapter))));
  if (call.finish !== undefined && textOf(record, call.finish) === "length") head.append(" ", badges(["cut off"]));
  const parts = [rawReply(record, call)];
  if (hasTokens(record, call)) parts.push(tokenView(record, call));
  else if (call.logprobs && call.logprobs.length) parts.push(optionView(record, call));
  return make("li", "call", head, call.messages ? prompt(record, call) : null, ...parts);
}

function callsBox(record, list, leftOut, label) {
  const count = list.length + (leftOut || 0);
  return folded("calls", `${label}: ${plural(count, "call")}`, () => {
    const items = make("ol", "call-list", ...list.map((call) => callItem(record, call)));
    if (list.some((call) => hasTokens(record, call))) items.prepend(make("li", "", legend()));
    if (leftOut) items.append(make("li", "nothing", `${leftOut} more are not shown.`));
    if (list.length && !list.some((one) => one.messages))
      items.append(make("li", "nothing", "Their prompts were not recorded: comap run --keep prompts records them, --keep tokens also the tokens' probabilities."));
    return items;
  });
}

// What one side's record says of a step, beside what happened.
function thoughts(view, step) {
  const { record, side, name } = view;
  const prefix = name ? `${name}: ` : "";
  const own = step ? side.steps[step - 1] : null;
  const parts = [];
  if (own && own.told) parts.push(folded("told", `${prefix}What the environment reported`, () => named(record, own.told)));
  if (own && own.calls) parts.push(callsBox(record, own.calls, own.calls_left_out, `${prefix}What language models said`));
  if (own && own.notes) parts.push(folded("notes", `${prefix}What the agent noted`, () => named(record, own.notes)));
  if (side.review && step === side.steps.length)
    parts.push(callsBox(record, side.review, side.review_left_out, `${prefix}What they said after the last step`));
  return parts.map((part) => make("section", "thinking", part));
}
