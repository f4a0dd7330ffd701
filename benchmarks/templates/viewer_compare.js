// ---- Part 6: what two texts, and two changes of a belief, have in common

const TOKEN = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
const MAX_CELLS = 1e6; // longer texts are compared at their beginnings and ends only

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

// Which words of `a` are in no longest common subsequence of `a` and `b`.
function differences(a, b) {
  const differs = new Array(a.length).fill(true);
  const shortest = Math.min(a.length, b.length);
  let [start, end] = [0, 0];
  while (start < shortest && a[start] === b[start]) differs[start++] = false;
  while (end < shortest - start && a[a.length - 1 - end] === b[b.length - 1 - end])
    differs[a.length - 1 - end++] = false;
  const [own, other] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  if (own.length * other.length > MAX_CELLS) return differs;
  const table = tableOf(own, other);
  const width = other.length + 1;
  for (let i = 0, j = 0; i < own.length && j < other.length; ) {
    if (own[i] === other[j]) {
      differs[start + i++] = false;
      j++;
    } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
    else j++;
  }
  return differs;
}

// Where a text differs from another one; a blank between two such words belongs to them.
function differingRanges(own, other) {
  if (own === other) return [];
  const words = own.match(TOKEN) || [];
  const differs = differences(words, other.match(TOKEN) || []);
  const marked = (i) => differs[i] || (/^\s+$/.test(words[i]) && differs[i - 1] && differs[i + 1]);
  const ranges = [];
  let at = 0;
  for (let i = 0; i < words.length; i++) {
    const last = ranges[ranges.length - 1];
    const end = at + words[i].length;
    if (marked(i)) {
      if (last && last[1] === at) last[1] = end;
      else ranges.push([at, end]);
    }
    at = end;
  }
  return ranges;
}

const comparison = (own, other) =>
  rich(own, search.pattern, other === null || other === undefined ? [] : differingRanges(own, other));

// ---- Facts

function factItem(fact, sign, note, kind = "") {
  const item = make("li", kind, make("span", "sign", sign), rich(fact, search.pattern));
  if (sign) item.prepend(make("span", "spoken", sign === "+" ? "added: " : "removed: "));
  const fate = make("span", "fate", note);
  if (note) item.append(Object.hasOwn(TERMS, note) ? explain(fate, note) : fate);
  return item;
}

const FATES = { both: "foreseen", left: "missed", right: "made up" };

// What a step changed; beside it what was foreseen of that, missed, and made up.
function changedFacts(left, right, step) {
  const box = make("section", "changes", make("h4", "", "Changed facts"));
  if (!step) {
    box.append(make("p", "nothing", "The episode starts here."));
    return box;
  }
  const own = changesOf(left, step);
  const others = right && momentOf(right.side, step) ? changesOf(right, step) : null;
  const isForecast = others && right.record === left.record;
  const fateOf = (key) => (own.has(key) ? (others.has(key) ? "both" : "left") : "right");
  const items = { both: [], left: [], right: [] };
  const words = isForecast ? FATES : { both: "both", left: `only ${left.name}`, right: right && `only ${right.name}` };
  for (const [key, [sign, fact]] of new Map([...own, ...(others || [])])) {
    const fate = others ? fateOf(key) : "both";
    items[fate].push(factItem(fact, sign, others ? words[fate] : "", isForecast ? slug(FATES[fate]) : ""));
  }
  const list = make("ul", "facts", ...Object.values(items).flat());
  const counts = Object.fromEntries(Object.entries(items).map(([fate, found]) => [fate, found.length]));
  const score = isForecast ? left.record.delta_f1[step - 1] : null;
  if (others) box.firstChild.append(" ", summaryOfChanges(left.record, counts, isForecast, step, score));
  box.append(list.childElementCount ? list : make("p", "nothing", "No fact changes."));
  return box;
}

// Episodes drift apart: then what counts is the change of the real belief, as it was scored.
function summaryOfChanges(record, counts, isForecast, step, score) {
  if (!isForecast) return make("span", "model", `${counts.both} in both, ${counts.left + counts.right} in one`);
  const [right, missed, wrong] = record.deltas[step - 1] || [counts.both, counts.left, counts.right];
  const words = make("span", "model", `${right} foreseen, ${missed} missed, ${wrong} made up`);
  return score === null ? words : make("span", "", words, " ", deltaScore(score));
}

function deltaScore(score) {
  const meter = make("span", `delta-f1 ${scoreClass(score)}`, `Delta-F1 ${decimal(score)}`);
  return explain(meter, "Delta-F1");
}

function beliefFacts(view, other, step) {
  const held = beliefOf(view, step);
  if (!held) return null;
  const heldByOther = other && beliefOf(other, step);
  const isApart = (fact) => Boolean(heldByOther && !heldByOther.has(fact));
  const apart = [...held].filter(isApart).length;
  const label = `${plural(held.size, "fact")} held true${apart ? `, ${apart} not in the other` : ""}`;
  return folded("beliefs", label, () => {
    const record = view.record;
    const own = step ? view.side.steps[step - 1] : {};
    const added = new Set((own.added || []).map((fact) => record.facts[fact]));
    const rank = (fact) => (isApart(fact) ? 0 : added.has(fact) ? 1 : 2); // what matters first
    const list = make("ul", "facts");
    for (const fact of [...held].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1)))
      list.append(factItem(fact, added.has(fact) ? "+" : "", isApart(fact) ? "not in the other" : ""));
    return list;
  });
}
