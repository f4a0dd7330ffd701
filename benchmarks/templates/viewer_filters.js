// ---- Part 4: which episodes are in the list, by what the index says of them

const FACETS = [
  ["run", "Run", (entry) => nameOf(entry, "run")],
  ["environment", "Environment", (entry) => nameOf(entry, "environment")],
  ["agent", "Agent", (entry) => nameOf(entry, "agent")],
  ["outcome", "Outcome", (entry) => entry.outcome],
  ["split", "Split", (entry) => nameOf(entry, "split")],
  ["type", "Task type", (entry) => nameOf(entry, "type")],
];
const FLAGS = [
  ["imagined", "imagined"],
  ["predicted", "with predictions"],
  ["revised", "revised"],
  ["refused", "refused actions"],
  ["tokens", "token probabilities"],
];
const ORDERS = {
  "": ["as recorded", () => 0],
  longest: ["longest first", (a, b) => b.steps - a.steps],
  shortest: ["shortest first", (a, b) => a.steps - b.steps],
  worst: ["lowest Delta-F1 first", (a, b) => (a.f1 ?? 2) - (b.f1 ?? 2)],
  hits: ["most hits first", (a, b) => hitsIn(b) - hitsIn(a)],
};

const chosen = { order: "", flags: new Set() }; // and the value of each facet, where one is chosen
const facetSelects = new Map();
const flagButtons = new Map();

// An episode's hits are there once the search has come to it.
function hitsIn(entry) {
  const found = search.found.get(entry.number);
  return found ? found.total : 0;
}

function passes(entry, but = "") {
  for (const [name, , valueOf] of FACETS)
    if (name !== but && chosen[name] !== undefined && valueOf(entry) !== chosen[name]) return false;
  for (const flag of chosen.flags) if (flag !== but && !entry.flags.includes(flag)) return false;
  return !search.pattern || hitsIn(entry) > 0;
}

function shownEpisodes() {
  const shown = entries.filter((entry) => passes(entry));
  const [, compare] = ORDERS[chosen.order];
  return shown.sort((a, b) => compare(a, b) || a.number - b.number).map((entry) => entry.number);
}

function select(label, options, onChange) {
  const box = make("select", "");
  for (const [value, words] of options) {
    const option = make("option", "", words);
    option.value = value;
    box.append(option);
  }
  box.addEventListener("change", () => onChange(box.value));
  return [box, make("label", "facet", make("span", "", label), box)];
}

const short = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

// A facet is offered where episodes differ in it; its values go by number, so that none is special.
function facetBox([name, label, valueOf], onChange) {
  const values = [...new Set(entries.map(valueOf))].sort();
  if (values.length < 2) return null;
  const options = [["", "all"], ...values.map((value, i) => [String(i), visible(short(value)) || "(none)"])];
  const [box, whole] = select(label, options, (value) => {
    if (value === "") delete chosen[name];
    else chosen[name] = values[Number(value)];
    onChange();
  });
  facetSelects.set(name, { box, values, valueOf, labels: options.map(([, words]) => words) });
  return whole;
}

function flagBox(onChange) {
  const box = make("div", "flags");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Only episodes that are, or have");
  for (const [flag, words] of FLAGS) {
    const count = entries.filter((entry) => entry.flags.includes(flag)).length;
    if (!count || count === entries.length) continue;
    const button = makeButton("chip", () => {
      if (!chosen.flags.delete(flag)) chosen.flags.add(flag);
      onChange();
    }, words, " ", make("span", "count"));
    flagButtons.set(flag, button);
    box.append(button);
  }
  return box.childElementCount ? box : null;
}

function buildFilters(onChange) {
  const boxes = FACETS.map((facet) => facetBox(facet, onChange)).filter(Boolean);
  const orders = Object.entries(ORDERS).map(([value, [words]]) => [value, words]);
  const [box, whole] = select("Order", orders, (value) => {
    chosen.order = value;
    onChange();
  });
  facetSelects.set("order", { box });
  byId("filters").replaceChildren(...boxes, whole, flagBox(onChange) ?? "");
}

// Numbers beside each value: how many episodes it would leave, all else as it is.
function showCounts() {
  for (const [name, { box, values, valueOf, labels }] of facetSelects) {
    if (name === "order") {
      box.value = chosen.order;
      continue;
    }
    const counts = new Map();
    for (const entry of entries)
      if (passes(entry, name)) counts.set(valueOf(entry), (counts.get(valueOf(entry)) || 0) + 1);
    values.forEach((value, i) => {
      box.options[i + 1].textContent = `${labels[i + 1]} (${counts.get(value) || 0})`;
    });
    box.value = chosen[name] === undefined ? "" : String(values.indexOf(chosen[name]));
    box.classList.toggle("used", chosen[name] !== undefined);
  }
  for (const [flag, button] of flagButtons) {
    const count = entries.filter((entry) => entry.flags.includes(flag) && passes(entry, flag)).length;
    button.setAttribute("aria-pressed", String(chosen.flags.has(flag)));
    button.querySelector(".count").textContent = String(count);
  }
}

function clearFilters() {
  for (const [name] of FACETS) delete chosen[name];
  chosen.flags.clear();
  chosen.order = "";
}

// What a link keeps of the filters, and how it is taken back.
function filterWords() {
  const words = new URLSearchParams();
  for (const [name] of FACETS) if (chosen[name] !== undefined) words.set(name, chosen[name]);
  if (chosen.flags.size) words.set("with", [...chosen.flags].join(" "));
  if (chosen.order) words.set("order", chosen.order);
  return words;
}

function takeFilters(words) {
  clearFilters();
  for (const [name] of FACETS) {
    const facet = facetSelects.get(name);
    if (facet && words.has(name) && facet.values.includes(words.get(name))) chosen[name] = words.get(name);
  }
  for (const flag of (words.get("with") || "").split(" ")) if (flagButtons.has(flag)) chosen.flags.add(flag);
  if (Object.hasOwn(ORDERS, words.get("order") || "")) chosen.order = words.get("order") || "";
}
