// The trajectory viewer. Every text comes from an environment or a model: it is only ever written
// into text nodes. Beliefs come as a start and changes, and are folded when a step is shown.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const viewer = document.getElementById("viewer");
  if (!viewer) return;
  const episodeList = document.getElementById("episodes");
  const stepList = document.getElementById("steps");
  const detail = document.getElementById("detail");
  const filter = document.getElementById("filter");
  const state = { episode: 0, step: 0, open: { beliefs: false, notes: true, calls: false } };

  // Direction marks, controls, lone surrogates: what would hide or reorder text is shown by name.
  const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}]/gu;
  const TOKEN = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
  const MAX_CELLS = 1e6; // longer texts are compared at their beginnings and ends only

  // ---- Building elements

  function write(parent, text) {
    let end = 0;
    for (const match of text.matchAll(HIDDEN)) {
      parent.append(text.slice(end, match.index));
      const label = document.createElement("span");
      label.className = "hidden-char";
      const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      label.textContent = `U+${code}`;
      parent.append(label);
      end = match.index + match[0].length;
    }
    parent.append(text.slice(end));
  }

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    for (const child of children) {
      if (child === null) continue;
      if (typeof child === "string") write(element, child);
      else element.append(child);
    }
    return element;
  }

  const isolated = (text) => make("bdi", "", text);
  const text = (index) => data.texts[index];
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const decimal = (value) => (typeof value === "number" ? value.toFixed(2) : String(value));

  // ---- Folding beliefs

  function change(facts, step) {
    for (const fact of step.removed || []) facts.delete(fact);
    for (const fact of step.added || []) facts.add(fact);
    return facts;
  }

  function belief(side, count) {
    const facts = new Set(side.facts);
    for (const step of side.steps.slice(0, count)) change(facts, step);
    return facts;
  }

  function beliefOf(episode, side, index) {
    if (!side || (index > 0 && !side.steps[index - 1])) return null;
    if (!side.predicted) return belief(side, index);
    return index ? change(belief(episode.real, index - 1), side.steps[index - 1]) : null;
  }

  // ---- Comparing two texts, word by word

  function tableOf(a, b) {
    const width = b.length + 1;
    const table = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        table[i * width + j] =
          a[i] === b[j]
            ? table[(i + 1) * width + j + 1] + 1
            : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    return table;
  }

  // Which tokens of `a` and of `b` belong to no longest common subsequence of the two.
  function differences(a, b) {
    const differs = [new Array(a.length).fill(true), new Array(b.length).fill(true)];
    let start = 0;
    let end = 0;
    const shortest = Math.min(a.length, b.length);
    while (start < shortest && a[start] === b[start]) start++;
    while (end < shortest - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    [a, b].forEach((tokens, k) => differs[k].fill(false, 0, start));
    [a, b].forEach((tokens, k) => differs[k].fill(false, tokens.length - end));
    const middle = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
    if (middle[0].length * middle[1].length > MAX_CELLS) return differs;
    const table = tableOf(...middle);
    const width = middle[1].length + 1;
    for (let i = 0, j = 0; i < middle[0].length && j < middle[1].length; ) {
      if (middle[0][i] === middle[1][j]) {
        differs[0][start + i++] = differs[1][start + j++] = false;
      } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
      else j++;
    }
    return differs;
  }

  function highlighted(tokens, differs) {
    const block = isolated("");
    const marked = (i) =>
      differs[i] || (/^\s+$/.test(tokens[i]) && differs[i - 1] && differs[i + 1]);
    for (let i = 0; i < tokens.length; ) {
      const kind = Boolean(marked(i));
      let run = "";
      for (; i < tokens.length && Boolean(marked(i)) === kind; i++) run += tokens[i];
      if (kind) block.append(make("mark", "differs", run));
      else write(block, run);
    }
    return block;
  }

  function comparison(own, other) {
    if (other === null || own === other) return isolated(own);
    const tokens = [own, other].map((t) => t.match(TOKEN) || []);
    return highlighted(tokens[0], differences(...tokens)[0]);
  }

  // A part that is folded until it is wanted; whether it is open stays from step to step.
  function folded(kind, label, contents) {
    const box = make("details", kind, make("summary", "", label));
    const fill = () => {
      if (box.open && box.childElementCount === 1) box.append(contents());
    };
    box.addEventListener("toggle", () => {
      state.open[kind] = box.open;
      fill();
      for (const one of detail.querySelectorAll(`details.${kind}`)) one.open = box.open;
    });
    box.open = Boolean(state.open[kind]);
    fill();
    return box;
  }

  // ---- The two columns of a step

  function badges(names) {
    const list = make("span", "badges");
    for (const name of names) list.append(make("span", `badge ${name.replaceAll(" ", "-")}`, name));
    return list;
  }

  function factItem(fact, sign, note) {
    const kind = { "+": "added", "−": "removed" }[sign] || "";
    const item = make("li", kind, make("span", "sign", sign), isolated(data.facts[fact]));
    if (kind) item.prepend(make("span", "spoken", `${kind}: `));
    if (note) item.append(make("span", "only", note));
    return item;
  }

  function changes(step, other, name) {
    const list = make("ul", "facts");
    for (const [key, sign] of [["added", "+"], ["removed", "−"]])
      for (const fact of step[key] || []) {
        const shared = !other || (other[key] || []).includes(fact);
        list.append(factItem(fact, sign, shared ? "" : `only ${name}`));
      }
    return list.childElementCount ? list : make("p", "nothing", "No fact changes.");
  }

  function beliefs(own, other, step) {
    const apart = other ? [...own].filter((fact) => !other.has(fact)).length : 0;
    const note = apart ? `, ${apart} not in the other` : "";
    return folded("beliefs", `Belief: ${plural(own.size, "fact")}${note}`, () => {
      const added = new Set(step.added);
      const isApart = (fact) => Boolean(other && !other.has(fact));
      const rank = (fact) => (isApart(fact) ? 0 : added.has(fact) ? 1 : 2); // what matters first
      const byText = (a, b) => (data.facts[a] < data.facts[b] ? -1 : 1);
      const list = make("ul", "facts");
      for (const fact of [...own].sort((a, b) => rank(a) - rank(b) || byText(a, b)))
        list.append(
          factItem(fact, added.has(fact) ? "+" : "", isApart(fact) ? "not in the other" : "")
        );
      return list;
    });
  }

  function sideName(side, step, fallback) {
    if (step && step.source !== undefined) {
      const sure = step.confidence === undefined ? "" : `, confidence ${decimal(step.confidence)}`;
      return ["Predicted", `by ${text(step.source)}${sure}`];
    }
    const model = side.world_model === undefined ? "" : `by ${text(side.world_model)}`;
    return [side.predicted ? "Predicted" : fallback, fallback === "Imagined" ? model : ""];
  }

  // What a side shows at a step: number 0 is the start, with an observation and no action.
  const moment = (side, index) =>
    index ? side.steps[index - 1] || null : side.predicted ? null : side;

  function column(episode, name, index) {
    const isReal = name === "Real";
    const [side, otherSide] = isReal
      ? [episode.real, episode.imagined]
      : [episode.imagined, episode.real];
    const own = moment(side, index);
    const other = otherSide && moment(otherSide, index);
    const [title, model] = sideName(side, own, name);
    const head = make("h4", "", title, " ", make("span", "model", isolated(model)));
    const box = make("section", `column ${isReal ? "real" : "imagined"}`);
    if (!own) {
      const reason = side.predicted ? "Nothing was predicted here." : "This episode had ended by then.";
      box.append(make("header", "", head), make("p", "nothing", reason));
      return box;
    }
    const score = own.reward === undefined ? "" : `reward ${decimal(own.reward)}, score ${decimal(own.score)}`;
    box.append(make("header", "", head, badges(index ? own.flags || [] : []), make("span", "score", index ? score : "")));
    const action = index ? isolated(text(own.action)) : "(start)";
    const differs = index && other && own.action !== other.action;
    box.append(make("p", `action${differs ? " different" : ""}`, action, differs ? badges(["different action"]) : null));
    box.append(make("div", "observation", comparison(text(own.observation), other && text(other.observation))));
    const changed = make("div", "changes", make("h5", "", "Changed facts"));
    if (index) changed.append(changes(own, other, isReal ? "real" : title.toLowerCase()));
    else changed.append(make("p", "nothing", "The episode starts here."));
    const held = beliefOf(episode, side, index);
    const heldByOther = beliefOf(episode, otherSide, index);
    box.append(changed, beliefs(held, heldByOther, index ? own : {}));
    return box;
  }

  // ---- What the agent noted, and what language models were asked

  function named(pairs) {
    const list = make("dl", "named");
    for (const [name, value] of pairs)
      list.append(make("div", "", make("dt", "", isolated(text(name))), make("dd", "", isolated(text(value)))));
    return list;
  }

  function prompt(messages) {
    const box = make("details", "prompt", make("summary", "", `Prompt: ${plural(messages.length, "message")}`));
    box.addEventListener("toggle", () => {
      if (!box.open || box.childElementCount > 1) return;
      for (const [role, said] of messages)
        box.append(make("p", "role", isolated(text(role))), make("div", "said", isolated(text(said))));
    });
    return box;
  }

  function call(one) {
    const [read, written] = one.tokens;
    const facts = [`${read} tokens read`];
    if (written) facts.push(`${written} written`);
    const head = make("p", "call-head", make("strong", "", isolated(one.purpose === undefined ? "(no purpose)" : text(one.purpose))), " ");
    head.append(make("span", "badge", isolated(text(one.kind))), " ", make("span", "model", facts.join(", ")));
    if (one.adapter !== undefined) head.append(" ", make("span", "model", "adapter ", isolated(text(one.adapter))));
    if (one.finish !== undefined && text(one.finish) === "length") head.append(" ", badges(["cut off"]));
    const reply = make("div", "said");
    if (one.prefix !== undefined) reply.append(make("span", "given", isolated(text(one.prefix))));
    reply.append(isolated(text(one.text)));
    return make("li", "call", head, one.messages ? prompt(one.messages) : null, reply);
  }

  function calls(list, leftOut, label) {
    const count = list.length + (leftOut || 0);
    return folded("calls", `${label}: ${plural(count, "call")}`, () => {
      const items = make("ol", "call-list", ...list.map(call));
      if (leftOut) items.append(make("li", "nothing", `${leftOut} more are not shown.`));
      if (list.length && !list.some((one) => one.messages))
        items.append(make("li", "nothing", "Their prompts are not on record: comap run --keep prompts keeps them."));
      return items;
    });
  }

  function thinking(episode, index) {
    const parts = [];
    for (const [name, side] of [["", episode.real], ["Imagined: ", episode.imagined]]) {
      if (!side || side.predicted) continue;
      const own = index ? side.steps[index - 1] : null;
      if (own && own.notes) parts.push(folded("notes", `${name}What the agent noted`, () => named(own.notes)));
      if (own && own.calls) parts.push(calls(own.calls, own.calls_left_out, `${name}What language models said`));
      if (side.review && index === side.steps.length)
        parts.push(calls(side.review, side.review_left_out, `${name}What they said after the last step`));
    }
    return parts.length ? make("section", "thinking", ...parts) : null;
  }

  // ---- The page's parts

  const length = (episode) =>
    Math.max(episode.real.steps.length, episode.imagined ? episode.imagined.steps.length : 0);

  function about(episode) {
    const { goal, title, ...rest } = episode.about;
    const header = make("header", "about", make("h3", "", isolated(text(title))));
    if (goal !== undefined) header.append(make("p", "goal", isolated(text(goal))));
    const facts = make("dl", "");
    for (const [name, index] of Object.entries(rest))
      if (text(index)) facts.append(make("div", "", make("dt", "", name), make("dd", "", isolated(text(index)))));
    const scores = episode.delta_f1.filter((score) => score !== null);
    if (scores.length) {
      const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
      facts.append(make("div", "", make("dt", "", "mean Delta-F1"), make("dd", "", decimal(mean))));
    }
    header.append(facts);
    if (episode.settings) header.append(folded("settings", "Settings of the agent", () => named(episode.settings)));
    for (const [name, side] of [["Real", episode.real], ["Imagined", episode.imagined]])
      if (side && side.error !== undefined)
        header.append(make("p", "error", `${name} episode ended by an error: `, isolated(text(side.error))));
    return header;
  }

  function moves(episode) {
    const bar = make("div", "moves");
    for (const [name, by] of [["← Previous", -1], ["Next →", 1]]) {
      const button = make("button", "", name);
      button.type = "button";
      button.disabled = state.step + by < 0 || state.step + by > length(episode);
      button.addEventListener("click", () => showStep(state.step + by));
      bar.append(button);
    }
    bar.append(make("strong", "", state.step ? `Step ${state.step} of ${length(episode)}` : "Start"));
    const score = state.step ? episode.delta_f1[state.step - 1] : undefined;
    if (typeof score === "number") {
      const meter = make("span", `delta-f1 ${scoreClass(score)}`, `Delta-F1 ${decimal(score)}`);
      meter.title = "How well the facts that change here were foreseen: 1 is exactly, 0 not at all";
      bar.append(meter);
    }
    return bar;
  }

  const scoreClass = (score) => (score >= 0.995 ? "exact" : score > 0 ? "partial" : "wrong");

  function renderDetail() {
    const episode = data.episodes[state.episode];
    const columns = make("div", `columns${episode.imagined ? "" : " single"}`);
    columns.append(column(episode, "Real", state.step));
    if (episode.imagined) columns.append(column(episode, "Imagined", state.step));
    const parts = [about(episode), moves(episode), columns, thinking(episode, state.step)];
    detail.replaceChildren(...parts.filter((part) => part !== null));
  }

  function button(className, onClick, ...children) {
    const item = make("button", className, ...children);
    item.type = "button";
    item.tabIndex = -1;
    item.addEventListener("click", onClick);
    return make("li", "", item);
  }

  function outcome(episode) {
    const side = (one, words) =>
      make("span", one.success ? "solved" : "unsolved", `${one.success ? "✓" : "✗"} ${words(one.success)}`);
    const { real, imagined } = episode;
    const line = make("span", "meta", side(real, (solved) => (solved ? "solved" : "not solved")));
    if (imagined && !imagined.predicted) line.append(" · ", side(imagined, () => "imagined"));
    line.append(` · ${plural(length(episode), "step")}`);
    if ([real, imagined].some((one) => one && one.error !== undefined))
      line.append(" · ", make("span", "unsolved", "error"));
    return line;
  }

  function renderEpisodes() {
    const items = data.episodes.map((episode, i) =>
      button("item", () => showEpisode(i), make("span", "name", isolated(text(episode.about.title))), outcome(episode))
    );
    episodeList.replaceChildren(...items);
  }

  function renderSteps() {
    const episode = data.episodes[state.episode];
    const items = [button("item step", () => showStep(0), make("span", "t", "0"), make("span", "name", "(start)"))];
    for (let i = 1; i <= length(episode); i++) {
      const step = episode.real.steps[i - 1] || episode.imagined.steps[i - 1];
      const score = episode.delta_f1[i - 1];
      const invalid = (step.flags || []).includes("invalid action");
      items.push(
        button("item step", () => showStep(i),
          make("span", "t", String(i)),
          make("span", `name${invalid ? " invalid" : ""}`, isolated(text(step.action))),
          invalid ? make("span", "badge invalid-action", "invalid") : null,
          typeof score === "number" ? make("span", `delta-f1 ${scoreClass(score)}`, decimal(score)) : null)
      );
    }
    stepList.replaceChildren(...items);
  }

  // ---- Moving about

  function select(list, index) {
    const hadFocus = list.contains(document.activeElement);
    [...list.children].forEach((item, i) => {
      const target = item.firstElementChild;
      target.tabIndex = i === index ? 0 : -1;
      if (i === index) target.setAttribute("aria-current", "true");
      else target.removeAttribute("aria-current");
    });
    const item = list.children[index];
    const over = item.offsetTop + item.offsetHeight - list.clientHeight;
    list.scrollTop = Math.max(over, Math.min(list.scrollTop, item.offsetTop));
    if (hadFocus) item.firstElementChild.focus({ preventScroll: true });
  }

  let remembering = 0;
  function remember() {
    clearTimeout(remembering);
    const place = `#episode-${state.episode + 1}-step-${state.step}`;
    remembering = setTimeout(() => history.replaceState(null, "", place), 300);
  }

  function showStep(index, atStart = false) {
    const last = length(data.episodes[state.episode]);
    state.step = Math.max(0, Math.min(last, index));
    select(stepList, state.step);
    renderDetail();
    if (!atStart) remember();
  }

  function showEpisode(index, step = 0, atStart = false) {
    state.episode = index;
    select(episodeList, index);
    renderSteps();
    showStep(step, atStart);
  }

  function moveEpisode(by) {
    const items = [...episodeList.children];
    let index = state.episode + by;
    while (items[index] && items[index].hidden) index += by;
    if (items[index]) showEpisode(index);
  }

  function applyFilter() {
    const wanted = filter.value.trim().toLowerCase();
    let shown = 0;
    data.episodes.forEach((episode, i) => {
      const words = Object.values(episode.about).map(text);
      for (const side of [episode.real, episode.imagined])
        if (side && side.error !== undefined) words.push(text(side.error));
      const fits = words.join("\n").toLowerCase().includes(wanted);
      episodeList.children[i].hidden = !fits;
      shown += fits;
    });
    const total = data.episodes.length;
    document.getElementById("shown").textContent = shown === total ? `(${total})` : `(${shown} of ${total})`;
  }

  const MOVES = {
    j: () => showStep(state.step + 1),
    k: () => showStep(state.step - 1),
    l: () => moveEpisode(1),
    h: () => moveEpisode(-1),
  };
  const ARROWS = { ArrowDown: 1, ArrowUp: -1 };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === filter) return;
    const arrow = ARROWS[event.key];
    const inEpisodes = episodeList.contains(event.target);
    if (arrow && inEpisodes) moveEpisode(arrow);
    else if (arrow && stepList.contains(event.target)) showStep(state.step + arrow);
    else if (Object.hasOwn(MOVES, event.key)) MOVES[event.key]();
    else return;
    event.preventDefault();
  }

  function start() {
    renderEpisodes();
    applyFilter();
    const place = /^#episode-(\d+)-step-(\d+)$/.exec(location.hash);
    const index = place ? Math.min(data.episodes.length, Math.max(1, Number(place[1]))) - 1 : 0;
    showEpisode(index, place ? Number(place[2]) : 0, true);
    if (place) viewer.scrollIntoView();
    filter.addEventListener("input", applyFilter);
    document.addEventListener("keydown", onKey);
  }

  start();
})();
