// ---- Part 8: an episode, and one of its steps

const state = { episode: -1, step: 0, record: null, beside: null };

const lengthOf = (record) =>
  Math.max(record.real.steps.length, record.imagined ? record.imagined.steps.length : 0);

// Which episode of the list is opened first: the one with the most telling step, where it then opens.
function episodeOfInterest() {
  let best = shown[0] ?? 0;
  for (const number of shown) if (entries[number].interest < entries[best].interest) best = number;
  return best;
}

const OUTCOMES = { solved: ["solved", "✓"], "not solved": ["unsolved", "✗"], failed: ["unsolved", "!"], "outcome unknown": ["meta", "?"] };

function outcomeOf(entry) {
  const [kind, sign] = OUTCOMES[entry.outcome];
  return make("span", kind, `${sign} ${entry.outcome}`);
}

// Which views there are of the episode: what happened, and beside it what was imagined or another run.
function viewsOf(step) {
  const { record, beside } = state;
  const own = step ? record.real.steps[step - 1] : null;
  const dreamt = Boolean(own && (own.flags || []).includes("imagined"));
  const left = { record, side: record.real, title: dreamt ? "Imagined" : "Real", name: dreamt ? "imagined" : "real" };
  if (beside) return [left, { record: beside.record, side: beside.record.real, title: beside.title, name: "beside" }];
  if (!record.imagined) return [left, null];
  const predicted = record.imagined.predicted;
  return [left, { record, side: record.imagined, title: predicted ? "Predicted" : "Imagined", name: predicted ? "predicted" : "imagined" }];
}

function modelOf(view, own) {
  if (own && own.source !== undefined) {
    const sure = own.confidence === undefined ? "" : `, confidence ${decimal(own.confidence)}`;
    return `by ${textOf(view.record, own.source)}${sure}`;
  }
  return view.side.world_model === undefined || view.title === "Real" ? "" : `by ${textOf(view.record, view.side.world_model)}`;
}

function column(view, other, step, kind) {
  const own = momentOf(view.side, step);
  const otherOwn = other && momentOf(other.side, step);
  const head = make("h4", "", isolated(view.title), " ", make("span", "model", isolated(modelOf(view, own))));
  const box = make("section", `column ${kind}`);
  if (!own) {
    const reason = view.side.predicted ? "Nothing was predicted here." : "This episode had ended by then.";
    const draft = view.side.predicted && otherOwn ? otherOwn.of_draft : undefined;
    if (draft) box.append(...forecastOfDraft(view, draft));
    else box.append(make("header", "", head), make("p", "nothing", reason));
    return box;
  }
  const score = step && own.reward !== undefined ? `reward ${decimal(own.reward)}, score ${decimal(own.score)}` : "";
  box.append(make("header", "", head, badges(step ? own.flags || [] : []), make("span", "score", score)));
  const said = step ? textOf(view.record, own.action) : null;
  const differs = step && otherOwn && said !== textOf(other.record, otherOwn.action);
  box.append(make("p", "action", said === null ? "(start)" : rich(said, search.pattern), differs ? badges(["different action"]) : null));
  const seen = textOf(view.record, own.observation);
  box.append(make("div", "observation", comparison(seen, otherOwn && textOf(other.record, otherOwn.observation))));
  const held = beliefFacts(view, other, step);
  if (held) box.append(held);
  if (own.screenshot) box.append(screenshot(own.screenshot));
  return box;
}

// What was foreseen of a draft that was not taken: the reason, often, why another action was.
function forecastOfDraft(view, draft) {
  const head = make("h4", "", isolated(view.title), " ", make("span", "model", "of the draft, which was not taken"));
  const action = make("p", "action", rich(textOf(view.record, draft.action), search.pattern));
  const said = make("div", "observation", rich(textOf(view.record, draft.observation), search.pattern));
  return [make("header", "", head), action, said, make("p", "nothing", "Nothing was predicted of the action that was taken.")];
}

function screenshot(jpeg) {
  const image = make("img", "screenshot");
  image.src = `data:image/jpeg;base64,${jpeg}`;
  image.alt = "The page as a browser showed it after this step";
  return image;
}

// ---- The head of an episode

function sameTask(number) {
  const own = entries[number];
  return entries.filter((entry) => entry.task === own.task && entry.environment === own.environment);
}

const variantOf = (entry) => {
  const parts = [nameOf(entry, "run"), nameOf(entry, "agent"), entry.trial ? `trial ${entry.trial}` : ""];
  return parts.filter(Boolean).join(", ") || `episode ${entry.number + 1}`;
};

function taskBox(number) {
  const others = sameTask(number).filter((entry) => entry.number !== number);
  if (!others.length) return null;
  const box = make("div", "others", make("span", "model", "This task also:"));
  for (const entry of others.slice(0, 12)) {
    const name = isolated(variantOf(entry));
    const isBeside = state.beside && state.beside.number === entry.number;
    const look = makeButton(`chip ${isBeside ? "used" : ""}`, () => putBeside(isBeside ? null : entry.number), "beside");
    look.setAttribute("aria-pressed", String(Boolean(isBeside)));
    look.setAttribute("aria-label", `Show ${visible(variantOf(entry))} beside this`);
    box.append(make("span", "other", makeButton("link", () => openEpisode(entry.number, state.step), name), " ", outcomeOf(entry), " ", look));
  }
  if (others.length > 12) box.append(make("span", "model", `and ${others.length - 12} more`));
  return box;
}

function aboutBox() {
  const { record, episode } = state;
  const { goal, title, ...rest } = record.about;
  const entry = entries[episode];
  const titleText = textOf(record, title);
  const header = make("header", "about", make("h3", "", rich(titleText, search.pattern), " ", outcomeOf(entry)));
  if (goal !== undefined && textOf(record, goal) !== titleText)
    header.append(make("p", "goal", rich(textOf(record, goal), search.pattern)));
  const facts = make("dl", "");
  for (const [name, place] of Object.entries(rest))
    if (textOf(record, place)) facts.append(term(name, rich(textOf(record, place), name === "task" ? search.pattern : null)));
  if (nameOf(entry, "type")) facts.append(term("task type", isolated(nameOf(entry, "type"))));
  if (entry.f1 !== undefined) facts.append(term(explain(make("span", "", "Delta-F1 of changes"), "Delta-F1 of changes"), decimal(entry.f1)));
  header.append(facts);
  for (const [name, side] of [["The episode", record.real], ["The imagined episode", record.imagined]])
    if (side && side.error !== undefined)
      header.append(make("p", "error", `${name} ended by an error: `, rich(textOf(record, side.error), search.pattern)));
  const others = taskBox(episode);
  if (others) header.append(others);
  if (record.settings) header.append(folded("settings", "Settings of the agent", () => named(record, record.settings)));
  return header;
}

// ---- Everything about a step

function stepParts(step) {
  const [left, right] = viewsOf(step);
  const columns = make("div", `columns${right ? "" : " single"}`, column(left, right, step, left.name));
  if (right) columns.append(column(right, left, step, right.name));
  const own = step ? left.side.steps[step - 1] : null;
  const parts = [columns, changedFacts(left, right, step)];
  if (own && own.gates) parts.push(gatesBox(left.record, own.gates));
  parts.push(...thoughts({ ...left, name: "" }, step));
  if (right && !right.side.predicted) parts.push(...thoughts({ ...right, name: right.title }, step));
  return parts;
}

// A row of the list of steps.
function stepRow(step) {
  const { record, episode } = state;
  const hits = search.found.get(episode);
  const count = hits && hits.steps.get(step);
  const found = count ? make("span", "badge hits", String(count), make("span", "spoken", count === 1 ? " hit" : " hits")) : null;
  if (!step) return [make("span", "t", "0"), make("span", "name", "(start)"), found];
  const own = record.real.steps[step - 1] || record.imagined.steps[step - 1];
  const score = record.delta_f1[step - 1];
  const refused = (own.flags || []).includes("invalid action");
  const meter = typeof score === "number" ? make("span", `delta-f1 ${scoreClass(score)}`, decimal(score)) : null;
  if (meter) explain(meter, "Delta-F1");
  return [
    make("span", "t", String(step)),
    make("span", `name${refused ? " invalid" : ""}`, isolated(textOf(record, own.action))),
    found,
    refused ? make("span", "badge invalid-action", "refused") : null,
    own.gates && own.gates.revised ? make("span", "badge revised", "revised") : null,
    meter,
  ].filter(Boolean);
}

// A row of the list of episodes.
function episodeRow(number) {
  const entry = entries[number];
  const hits = search.found.get(number);
  const meta = make("span", "meta", outcomeOf(entry), ` · ${plural(entry.steps, "step")}`);
  if (entry.f1 !== undefined) meta.append(` · ΔF1 ${decimal(entry.f1)}`);
  if (entry.flags.includes("revised")) meta.append(" · revised");
  if (entry.trial) meta.append(` · trial ${entry.trial}`);
  for (const facet of ["run", "agent"])
    if (facetSelects.has(facet)) meta.append(" · ", isolated(nameOf(entry, facet)));
  const head = make("span", "name", rich(entry.title, search.pattern));
  head.title = visible(entry.title);
  return [make("span", "t", String(number + 1)), make("span", "words", head, meta), hits && hits.total ? make("span", "badge hits", String(hits.total)) : make("span")];
}
