// The report of experiments: what a cell is made of, on hover and focus.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  // ---- What a cell is made of

  const tip = byId("tip");
  let shown = null;
  let leaving = 0;

  function fill(row) {
    const [who, column, value, interval, of, sources] = row.cells;
    const copy = (from) => [...from.cloneNode(true).childNodes];
    tip.replaceChildren(
      make("strong", "", ...copy(who)),
      make("div", "what", ...copy(column)),
      make("div", "big", ...copy(value)),
    );
    if (interval.textContent) tip.append(make("div", "", "95 % interval: ", ...copy(interval)));
    if (of.textContent) tip.append(make("div", "", ...copy(of)));
    if (sources.querySelector("li")) tip.append(...copy(sources));
  }

  function show(link) {
    clearTimeout(leaving);
    if (shown === link) return;
    hide();
    const row = byId(link.hash.slice(1));
    if (!row) return;
    fill(row);
    shown = link;
    link.closest("td").classList.add("shown");
    link.setAttribute("aria-describedby", "tip");
    tip.hidden = false;
    const at = link.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(12, at.right - own.width), innerWidth - own.width - 12);
    const below = at.bottom + 6 + own.height < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(6, at.top - own.height - 6)}px`;
  }

  function hide() {
    clearTimeout(leaving);
    if (!shown) return;
    shown.closest("td").classList.remove("shown");
    shown.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  }

  function soon() {
    clearTimeout(leaving);
    leaving = setTimeout(hide, 180);
  }

  const cellOf = (event) => event.target.closest?.("td")?.querySelector("a.cell");
  document.addEventListener("mouseover", (event) => {
    const link = cellOf(event);
    if (link) show(link);
    else if (tip.contains(event.target)) clearTimeout(leaving);
    else if (shown) soon();
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches?.("a.cell")) show(event.target);
    else if (!tip.contains(event.target)) hide();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", hide, { capture: true, passive: true });

  // ---- A link into a folded part opens it

  function unfold() {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    const folded = target && target.closest("details");
    if (!folded) return;
    hide();
    folded.open = true;
    target.scrollIntoView({ block: "center" });
  }
  addEventListener("hashchange", unfold);
  unfold();

  // ---- Where one is

  const contents = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
  const sections = [...document.querySelectorAll("main > section")];
  function mark() {
    const passed = sections.filter((one) => one.getBoundingClientRect().top < innerHeight / 3);
    const current = (passed.at(-1) || sections[0])?.id;
    for (const [id, link] of contents) {
      if (id === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
