// ---- Part 5: looking for a text in all episodes, without keeping the reader waiting

const SCOPES = ["goals", "actions", "observations", "prompts", "replies", "notes", "facts"];
const AT_A_TIME = 12; // milliseconds of work before the page may draw again
const AHEAD = 16; // episodes that are unpacked at a time
const search = { query: "", scope: "", pattern: null, found: new Map(), done: 0, damaged: 0, running: 0 };

// How often each text of an episode holds the pattern, asked once for each text.
function counter(texts, pattern) {
  const known = new Map();
  return (place) => {
    if (!known.has(place)) known.set(place, rangesOf(texts[place], pattern).length);
    return known.get(place);
  };
}

function hitsOf(record, pattern, scope) {
  const [inText, inFact] = [counter(record.texts, pattern), counter(record.facts, pattern)];
  const hits = { total: 0, steps: new Map(), scopes: new Map(), at: new Map() };
  const add = (step, where, count) => {
    if (!count) return;
    hits.scopes.set(where, (hits.scopes.get(where) || 0) + count);
    if (scope && where !== scope) return;
    hits.total += count;
    hits.steps.set(step, (hits.steps.get(step) || 0) + count);
    if (!hits.at.has(step)) hits.at.set(step, new Set());
    hits.at.get(step).add(where);
  };
  for (const [step, where, place] of textPlaces(record)) add(step, where, inText(place));
  for (const [step, where, place] of factPlaces(record)) add(step, where, inFact(place));
  hits.places = [...hits.steps.keys()].sort((a, b) => a - b);
  return hits;
}

// Look through every episode; `onProgress` is called now and then, and at the end.
async function lookFor(query, scope, onProgress) {
  const run = ++search.running;
  Object.assign(search, { query, scope, pattern: patternOf(query), found: new Map(), done: 0, damaged: 0 });
  if (!search.pattern) return onProgress(true);
  let since = performance.now();
  let drawn = since;
  let ahead = [];
  for (const { number } of entries) {
    if (number % AHEAD === 0) ahead = entries.slice(number, number + AHEAD).map((entry) => episodeOf(entry.number).catch(() => null));
    const record = await ahead[number % AHEAD];
    if (run !== search.running) return;
    const hits = record && hitsOf(record, search.pattern, scope);
    if (hits && hits.scopes.size) search.found.set(number, hits);
    search.damaged += record === null;
    search.done++;
    const now = performance.now();
    if (now - since < AT_A_TIME) continue;
    if (now - drawn > 250) onProgress(false), (drawn = now);
    await new Promise((resume) => setTimeout(resume));
    if (run !== search.running) return;
    since = performance.now();
  }
  onProgress(true);
}

// What the line below the search says: what there is, where, and how far the search is.
function searchWords() {
  if (!search.pattern) return "";
  let [total, episodes] = [0, 0];
  const scopes = new Map();
  for (const [number, hits] of search.found) {
    if (!passes(entries[number])) continue;
    total += hits.total;
    episodes += hits.total > 0;
    for (const [scope, count] of hits.scopes) scopes.set(scope, (scopes.get(scope) || 0) + count);
  }
  const where = SCOPES.filter((scope) => scopes.has(scope)).map((scope) => `${scope} ${scopes.get(scope).toLocaleString("en")}`);
  const words = `${plural(total, "hit")} in ${plural(episodes, "episode")}`;
  const going = search.done < entries.length ? ` (searching: ${search.done} of ${entries.length})` : "";
  const damaged = search.damaged ? ` (${plural(search.damaged, "episode")} could not be unpacked)` : "";
  return words + going + damaged + (where.length ? ` · ${where.join(", ")}` : "");
}
