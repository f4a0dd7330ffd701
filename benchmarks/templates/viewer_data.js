// ---- Part 2: the episodes. The index is read at once; an episode is unpacked when it is wanted.

const index = JSON.parse(byId("index").textContent);
const entries = index.episodes;
const nameOf = (entry, field) => index.names[entry[field]];
const MOST_LETTERS = 4e8; // of unpacked episodes that are kept; those used longest ago go first

const unpacked = new Map();
let lettersKept = 0;

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

// An episode's element, once the browser has read all of it: the first ones are there before the page is.
async function elementOf(number) {
  for (;;) {
    const element = byId(`packed-${number}`);
    if (element && (element.nextElementSibling || document.readyState !== "loading")) return element;
    await new Promise((resume) => requestAnimationFrame(resume));
  }
}

async function unpack(number) {
  if (typeof DecompressionStream === "undefined")
    throw new Error("this browser cannot unpack episodes: expected Chromium 80, Firefox 113 or Safari 16.4, or newer");
  const packed = await elementOf(number);
  try {
    const text = await inflate(packed.textContent);
    return { record: JSON.parse(text), letters: text.length };
  } catch {
    throw new Error("its data in this page is damaged; make the page again with comap view");
  }
}

function keep(number, one) {
  unpacked.delete(number);
  unpacked.set(number, one);
  for (const [oldest, { letters }] of unpacked) {
    if (lettersKept <= MOST_LETTERS || oldest === number) break;
    unpacked.delete(oldest);
    lettersKept -= letters;
  }
  return one.record;
}

// An episode as it was recorded; the same object for whoever asks next.
async function episodeOf(number) {
  const known = unpacked.get(number);
  if (known) return keep(number, known);
  const one = await unpack(number);
  if (unpacked.has(number)) return unpacked.get(number).record;
  lettersKept += one.letters;
  return keep(number, one);
}

const textOf = (record, place) => record.texts[place];

// ---- Beliefs: a start and changes, which are folded when a step is shown

function change(record, facts, step) {
  for (const fact of step.removed || []) facts.delete(record.facts[fact]);
  for (const fact of step.added || []) facts.add(record.facts[fact]);
  return facts;
}

function belief(record, side, count) {
  const facts = new Set(side.facts.map((fact) => record.facts[fact]));
  for (const step of side.steps.slice(0, count)) change(record, facts, step);
  return facts;
}

// What a side holds true after a step: of predictions, what was true before it and the change.
function beliefOf({ record, side }, step) {
  if (step > 0 && !side.steps[step - 1]) return null;
  if (!side.predicted) return belief(record, side, step);
  return step ? change(record, belief(record, record.real, step - 1), side.steps[step - 1]) : null;
}

// What a side shows at a step: number 0 is the start, with an observation and no action.
const momentOf = (side, step) => (step ? side.steps[step - 1] || null : side.predicted ? null : side);

// The signed facts that a step changes, as text.
function changesOf({ record, side }, step) {
  const own = step ? side.steps[step - 1] : null;
  const found = new Map();
  for (const [key, sign] of [["added", "+"], ["removed", "−"]])
    for (const fact of (own && own[key]) || []) found.set(sign + record.facts[fact], [sign, record.facts[fact]]);
  return found;
}

// ---- Where the texts of an episode are: of each, at which step, what it is, and its number

function* pairsAt(step, scope, pairs) {
  for (const [name, value] of pairs || []) {
    yield [step, scope, name];
    yield [step, scope, value];
  }
}

function* callsAt(step, calls) {
  for (const call of calls || []) {
    for (const message of call.messages || []) yield [step, "prompts", message[1]];
    if (call.prefix !== undefined) yield [step, "prompts", call.prefix];
    yield [step, "replies", call.text];
  }
}

function* sideTexts(side) {
  if (side.observation !== undefined) yield [0, "observations", side.observation];
  if (side.error !== undefined) yield [0, "notes", side.error];
  for (const [i, step] of side.steps.entries()) {
    if (!step) continue;
    yield [i + 1, "actions", step.action];
    yield [i + 1, "observations", step.observation];
    yield* pairsAt(i + 1, "notes", step.notes);
    yield* pairsAt(i + 1, "notes", step.told);
    yield* callsAt(i + 1, step.calls);
  }
  yield* callsAt(side.steps.length, side.review);
}

function* textPlaces(record) {
  for (const name of ["title", "goal", "task"])
    if (record.about[name] !== undefined && (name !== "goal" || record.about.goal !== record.about.title))
      yield [0, "goals", record.about[name]];
  for (const side of [record.real, record.imagined]) if (side) yield* sideTexts(side);
}

function* factPlaces(record) {
  for (const side of [record.real, record.imagined]) {
    if (!side) continue;
    for (const fact of side.facts || []) yield [0, "facts", fact];
    for (const [i, step] of side.steps.entries())
      for (const fact of step ? [...(step.added || []), ...(step.removed || [])] : []) yield [i + 1, "facts", fact];
  }
}
