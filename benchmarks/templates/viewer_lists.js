// ---- Part 3: lists of any length, of which only the rows in sight are there

class List {
  // `draw` returns what a row holds, `pick` is called when a row is chosen by mouse or key.
  constructor(element, label, draw, pick) {
    Object.assign(this, { element, draw, pick, count: 0, chosen: -1, rows: new Map(), waiting: false });
    element.setAttribute("role", "listbox");
    element.setAttribute("aria-label", label);
    element.tabIndex = 0;
    this.space = make("div", "space");
    element.replaceChildren(this.space);
    element.addEventListener("scroll", () => this.later());
    element.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.later()).observe(element);
  }

  // The height of a row is the style's, and follows the size of letters.
  get height() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) *
      parseFloat(getComputedStyle(document.documentElement).fontSize);
  }

  // Show other rows; `chosen` is -1 where none is.
  show(count, chosen) {
    const hadFocus = this.element.contains(document.activeElement);
    this.count = count;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.space.style.height = `${count * this.height}px`;
    this.choose(chosen);
    if (hadFocus) this.element.focus({ preventScroll: true });
  }

  choose(position) {
    const before = this.rows.get(this.chosen);
    if (before) before.setAttribute("aria-selected", "false");
    this.chosen = position;
    if (position >= 0) {
      const [top, height] = [position * this.height, this.height];
      const lowest = top + height - this.element.clientHeight;
      this.element.scrollTop = Math.max(lowest, Math.min(this.element.scrollTop, top));
    }
    this.refresh();
    const row = this.rows.get(position);
    if (row) {
      row.setAttribute("aria-selected", "true");
      this.element.setAttribute("aria-activedescendant", row.id);
    } else this.element.removeAttribute("aria-activedescendant");
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.refresh();
    });
  }

  refresh() {
    const { element, height } = this;
    const first = Math.max(0, Math.floor(element.scrollTop / height) - 4);
    const last = Math.min(this.count, Math.ceil((element.scrollTop + element.clientHeight) / height) + 4);
    for (const [position, row] of this.rows)
      if (position < first || position >= last) {
        row.remove();
        this.rows.delete(position);
      }
    for (let position = first; position < last; position++)
      if (!this.rows.has(position)) this.add(position, height);
  }

  add(position, height) {
    const row = make("div", "row", ...this.draw(position));
    row.id = `${this.element.id}-${position}`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(position === this.chosen));
    row.setAttribute("aria-setsize", String(this.count));
    row.setAttribute("aria-posinset", String(position + 1));
    row.style.top = `${position * height}px`;
    row.addEventListener("click", () => this.pick(position));
    this.rows.set(position, row);
    this.space.append(row);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.count) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    const target = Math.max(0, Math.min(this.count - 1, this.chosen + moves[event.key]));
    if (target !== this.chosen) this.pick(target);
  }
}
