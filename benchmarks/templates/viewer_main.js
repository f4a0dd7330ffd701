// ---- Part 9: moving about

entries.forEach((entry, number) => Object.assign(entry, { number }));
const page = {}; // the parts of the page that stay
let shown = []; // the episodes in the list, by number
let shownAt = new Map();

// ---- Showing

function showMoves() {
  const last = lengthOf(state.record);
  const { step } = state;
  page.back.disabled = step === 0;
  page.next.disabled = step === last;
  page.scrub.max = String(last);
  page.scrub.value = String(step);
  page.scrub.setAttribute("aria-valuetext", step ? `step ${step} of ${last}` : "start");
  page.place.textContent = step ? `Step ${step} of ${last}` : `Start, ${plural(last, "step")}`;
  const score = step ? state.record.delta_f1[step - 1] : null;
  page.score.replaceChildren(...(typeof score === "number" ? [deltaScore(score)] : []));
  const hits = search.found.get(state.episode);
  page.hits.hidden = !search.pattern;
  page.hitWords.textContent = hits && hits.total ? plural(hits.total, "hit") : "no hits here";
}

function showStep(step) {
  const last = lengthOf(state.record);
  state.step = Math.max(0, Math.min(last, step));
  const hits = search.found.get(state.episode);
  hitScopes = (hits && hits.at.get(state.step)) || new Set();
  page.steps.choose(state.step);
  showMoves();
  byId("step").replaceChildren(...stepParts(state.step));
  remember();
}

// Show what belongs to the whole episode, and the step again.
function showEpisode() {
  byId("about").replaceChildren(aboutBox());
  page.steps.show(lengthOf(state.record) + 1, state.step);
  showStep(state.step);
  page.episodes.choose(shownAt.get(state.episode) ?? -1);
}

let opening = 0;
async function openEpisode(number, step = null) {
  const ticket = ++opening;
  try {
    const record = await episodeOf(number);
    if (ticket !== opening) return;
    Object.assign(state, { episode: number, record, step: step ?? entries[number].opens, beside: null });
    byId("moves").hidden = byId("steps").hidden = false;
    showEpisode();
  } catch (error) {
    if (ticket !== opening) return;
    byId("about").replaceChildren(make("p", "error", `Episode ${number + 1} cannot be shown: ${error.message}`));
    byId("step").replaceChildren();
    byId("moves").hidden = byId("steps").hidden = true;
  }
}

async function putBeside(number) {
  const ticket = opening;
  const record = number === null ? null : await episodeOf(number);
  if (ticket !== opening) return;
  state.beside = record && { number, record, title: variantOf(entries[number]) };
  showEpisode();
}

function moveEpisode(by) {
  const at = shownAt.get(state.episode);
  const target = at === undefined ? (by > 0 ? 0 : shown.length - 1) : at + by;
  if (shown[target] !== undefined) openEpisode(shown[target]);
}

// ---- Which episodes are listed

function showList() {
  shown = shownEpisodes();
  shownAt = new Map(shown.map((number, at) => [number, at]));
  page.episodes.show(shown.length, shownAt.get(state.episode) ?? -1);
  const total = entries.length.toLocaleString("en");
  const some = shown.length === entries.length ? plural(entries.length, "episode") : `${shown.length.toLocaleString("en")} of ${total} episodes`;
  byId("shown").textContent = some;
  byId("found").textContent = searchWords();
  byId("clear").hidden = !search.query && !filterWords().size;
  showCounts();
}

function onFilter() {
  showList();
  if (shown.length && !shownAt.has(state.episode)) openEpisode(shown[0]);
  remember();
}

// Both lists, and the step, follow the search as it goes on; where it was typed, the first hit is shown.
async function startSearch(query, scope, isTyped = false) {
  let isToJump = isTyped && Boolean(query);
  let jump = null;
  await lookFor(query, scope, (isOver) => {
    showList();
    const isKnown = isOver || search.done > state.episode; // whether the shown episode has a hit
    if (isToJump && isKnown && shown.length) {
      isToJump = false;
      jump = jumpToHit();
    } else if (isOver && state.record) showEpisode();
  });
  await jump;
  remember();
}

let typing = 0;
const searchNow = () => startSearch(byId("search").value, byId("scope").value, true);
function onSearch() {
  clearTimeout(typing);
  typing = setTimeout(searchNow, 200);
}

const isUnsearched = () => byId("search").value !== search.query || byId("scope").value !== search.scope;

const firstMark = () => document.querySelector("#detail mark.hit");
const showMark = () => firstMark()?.scrollIntoView({ block: "center" });

// Typing leaves the page where it is, so that the search field stays in sight; Enter goes to the hit.
async function onEnter(by) {
  clearTimeout(typing);
  if (isUnsearched()) await searchNow();
  else if (!firstMark() || firstMark().getBoundingClientRect().top < innerHeight) return moveHit(by);
  showMark();
}

// The step's own hit, else the episode's first, else the first of the list.
async function jumpToHit() {
  const number = shownAt.has(state.episode) ? state.episode : shown[0];
  const { steps, places } = search.found.get(number);
  if (number !== state.episode) await openEpisode(number, places[0]);
  else {
    if (!steps.has(state.step)) state.step = places[0];
    showEpisode();
  }
}

// The next step that holds a hit: in this episode, else in the next one of the list.
async function moveHit(by) {
  if (!search.pattern) return;
  const hits = search.found.get(state.episode);
  const at = shownAt.get(state.episode);
  const places = at === undefined || !hits ? [] : hits.places;
  const further = places.filter((step) => (by > 0 ? step > state.step : step < state.step));
  if (further.length) showStep(by > 0 ? further[0] : further[further.length - 1]);
  else {
    const target = shown[at === undefined ? 0 : at + by];
    if (target === undefined) return;
    const steps = search.found.get(target).places;
    await openEpisode(target, by > 0 ? steps[0] : steps[steps.length - 1]);
  }
  showMark();
}

// ---- Links: #episode/step, and what was filtered and looked for

let remembering = 0;
function hashNow() {
  const words = filterWords();
  if (search.query) words.set("q", search.query);
  if (search.query && search.scope) words.set("in", search.scope);
  const query = words.toString();
  return `#${state.episode + 1}/${state.step}${query ? `?${query}` : ""}`;
}

function remember() {
  clearTimeout(remembering);
  if (state.episode < 0) return;
  remembering = setTimeout(() => history.replaceState(null, "", hashNow()), 200);
}

function placeInHash() {
  const found = /^#(\d{1,9})\/(\d{1,9})(?:\?(.*))?$/.exec(location.hash);
  if (!found) return null;
  const number = Math.max(1, Math.min(entries.length, Number(found[1]))) - 1;
  return { number, step: Number(found[2]), words: new URLSearchParams(found[3] || "") };
}

async function goToHash() {
  const place = placeInHash();
  const words = place ? place.words : new URLSearchParams();
  takeFilters(words);
  byId("search").value = words.get("q") || "";
  byId("scope").value = SCOPES.includes(words.get("in")) ? words.get("in") : "";
  showList();
  await openEpisode(place ? place.number : episodeOfInterest(), place ? place.step : null);
  if (isUnsearched())
    await startSearch(byId("search").value, byId("scope").value);
}

// ---- Keys

const toggle = (...kinds) => {
  const isOpen = !kinds.every((kind) => open[kind]);
  for (const kind of kinds) open[kind] = isOpen;
  showStep(state.step);
};

function clearAll() {
  clearFilters();
  byId("search").value = "";
  byId("scope").value = "";
  return search.query ? startSearch("", "") : onFilter();
}

const KEYS = {
  j: ["next step", () => showStep(state.step + 1), "→"],
  k: ["previous step", () => showStep(state.step - 1), "←"],
  l: ["next episode", () => moveEpisode(1)],
  h: ["previous episode", () => moveEpisode(-1)],
  g: ["first step", () => showStep(0)],
  G: ["last step", () => showStep(Infinity)],
  "/": ["search", () => byId("search").select()],
  n: ["next hit of the search", () => moveHit(1)],
  N: ["previous hit", () => moveHit(-1)],
  b: ["beliefs, open or folded", () => toggle("beliefs")],
  p: ["prompts, open or folded", () => toggle("calls", "prompt")],
  o: ["notes, open or folded", () => toggle("notes", "told")],
  x: ["clear search and filters", () => clearAll()],
  "?": ["these keys and terms", () => byId("help").showModal()],
};
const ARROWS = { ArrowRight: "j", ArrowLeft: "k" };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const key = ARROWS[event.key] ?? event.key;
  const isTyping = event.target instanceof Element && event.target.matches("input:not([type=range]), select");
  if (isTyping) {
    if (event.key === "Escape") byId("episodes").focus();
    else if (event.key === "Enter" && event.target.id === "search") onEnter(event.shiftKey ? -1 : 1);
    else return;
  } else if (Object.hasOwn(KEYS, key)) {
    if (!state.record && key !== "?" && key !== "/" && key !== "x") return;
    KEYS[key][1]();
  } else return;
  event.preventDefault();
}

function buildHelp() {
  const list = make("dl", "keys");
  for (const [key, [words, , arrow]] of Object.entries(KEYS))
    list.append(make("div", "", make("dt", "", make("kbd", "", key), arrow ? make("kbd", "", arrow) : null), make("dd", "", words)));
  for (const [keys, words] of [["↑ ↓ PgUp PgDn Home End", "in a list: move in it"], ["Enter", "in the search: next hit; with Shift the previous one"], ["← →", "in a reply's tokens: each one's probability"], ["Esc", "leave the search, or this"]])
    list.append(make("div", "", make("dt", "", ...keys.split(" ").map((key) => make("kbd", "", key))), make("dd", "", words)));
  const terms = make("dl", "keys", ...Object.entries(TERMS).map(([name, words]) => term(name, words)));
  byId("help-keys").replaceChildren(list, make("h3", "", "Terms"), terms);
}

// ---- Start

function buildMoves() {
  page.back = makeButton("", () => showStep(state.step - 1), "← Previous");
  page.next = makeButton("", () => showStep(state.step + 1), "Next →");
  page.place = make("strong", "");
  page.score = make("span", "");
  page.scrub = make("input", "scrub");
  Object.assign(page.scrub, { type: "range", min: "0", step: "1" });
  page.scrub.setAttribute("aria-label", "Step");
  page.scrub.addEventListener("input", () => showStep(Number(page.scrub.value)));
  page.hitWords = make("span", "model");
  page.hits = make("span", "hit-moves", makeButton("", () => moveHit(-1), "← hit"), makeButton("", () => moveHit(1), "hit →"), page.hitWords);
  byId("moves").replaceChildren(page.back, page.next, page.place, page.scrub, page.score, page.hits);
}

function build() {
  page.episodes = new List(byId("episodes"), "Episodes", (at) => episodeRow(shown[at]), (at) => openEpisode(shown[at]));
  page.steps = new List(byId("steps"), "Steps", stepRow, (step) => showStep(step));
  const scopes = [["", "everywhere"], ...SCOPES.map((scope) => [scope, `in ${scope}`])];
  for (const [value, words] of scopes) {
    const option = make("option", "", words);
    option.value = value;
    byId("scope").append(option);
  }
  buildFilters(onFilter);
  buildMoves();
  buildHelp();
  byId("search").addEventListener("input", onSearch);
  byId("scope").addEventListener("change", onSearch);
  byId("clear").addEventListener("click", clearAll);
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("close").addEventListener("click", () => byId("help").close());
  document.addEventListener("keydown", onKey);
}

function start() {
  build();
  showList();
  goToHash();
  window.addEventListener("hashchange", () => location.hash !== hashNow() && goToHash());
}

start();
