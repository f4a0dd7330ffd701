// The trajectory viewer, part 1: writing text. Every text comes from an environment or a model: it is
// only ever written into text nodes. All parts share one scope and are joined into one script.

const byId = (id) => document.getElementById(id);

// Direction marks, controls, lone surrogates: what would hide or reorder text is shown by name.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}]/gu;

const codeOf = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// For places that hold no elements: titles and options.
const visible = (text) => text.replace(HIDDEN, (char) => `[${codeOf(char)}]`);

function write(parent, text) {
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    parent.append(text.slice(end, match.index));
    const label = document.createElement("span");
    label.className = "hidden-char";
    label.textContent = codeOf(match[0]);
    parent.append(label);
    end = match.index + match[0].length;
  }
  parent.append(text.slice(end));
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const child of children) {
    if (child === null || child === undefined) continue;
    if (typeof child === "string") write(element, child);
    else element.append(child);
  }
  return element;
}

function makeButton(className, onClick, ...children) {
  const button = make("button", className, ...children);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

const isolated = (text) => make("bdi", "", text);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const decimal = (value, digits = 2) => (typeof value === "number" ? value.toFixed(digits) : String(value));
const scoreClass = (score) => (score >= 0.995 ? "exact" : score > 0 ? "partial" : "wrong");
const slug = (words) => words.replaceAll(" ", "-");

// ---- What is looked for

// Text is looked for as it is written, in upper or lower case.
function patternOf(query) {
  const escaped = query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  return query ? new RegExp(escaped, "giu") : null;
}

function rangesOf(text, pattern) {
  if (!pattern) return [];
  return Array.from(text.matchAll(pattern), (match) => [match.index, match.index + match[0].length]);
}

// A text in which what was looked for is marked, and what differs from another text.
function rich(text, pattern, differing = []) {
  const hits = rangesOf(text, pattern);
  const block = make("bdi", "");
  const cuts = [...new Set([0, text.length, ...differing.flat(), ...hits.flat()])].sort((a, b) => a - b);
  const within = (ranges) => {
    let at = 0;
    return (start) => {
      while (at < ranges.length && ranges[at][1] <= start) at++;
      return at < ranges.length && ranges[at][0] <= start;
    };
  };
  const [differs, found] = [within(differing), within(hits)];
  for (let i = 0; i + 1 < cuts.length; i++) {
    const kinds = [differs(cuts[i]) ? "differs" : "", found(cuts[i]) ? "hit" : ""].filter(Boolean);
    const piece = text.slice(cuts[i], cuts[i + 1]);
    if (kinds.length) block.append(make("mark", kinds.join(" "), piece));
    else write(block, piece);
  }
  return block;
}

function badges(names) {
  const list = make("span", "badges");
  for (const name of names) list.append(make("span", `badge ${slug(name)}`, name));
  return list;
}

// A number under its name, in a list of terms.
const TERMS = {
  "Delta-F1": "How well the facts that a step changes were predicted: 1 is exactly, 0 not at all.",
  "Delta-F1 of changes": "The mean Delta-F1 of the steps that changed a fact. In other steps it is 1 if no change was predicted.",
  p: "How probable it is that the reflected action is better than the draft.",
  q: "How confident the model is in the reflected action.",
  r: "How well the world model agrees with its teacher about what changes.",
  threshold: "The line in a bar. The reflected action replaces the draft where p and q are above theirs.",
  foreseen: "The world model predicted this change, and it happened.",
  missed: "This changed, but the world model did not predict it.",
  "made up": "The world model predicted this change, but it did not happen.",
};

// What a term means: for the mouse, and for who listens to the page.
function explain(element, name) {
  element.title = TERMS[name];
  element.setAttribute("aria-description", TERMS[name]);
  element.classList.add("explained");
  return element;
}

const term = (name, ...value) => make("div", "", make("dt", "", name), make("dd", "", ...value));
