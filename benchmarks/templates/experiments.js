// The report of experiments: what a cell is made of, on hover and focus; plots that answer.
// Texts from results are written into text nodes, and escaped where the plots' library reads markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
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

  // ---- Plots

  const packed = byId("plotly");
  if (!packed || typeof DecompressionStream === "undefined") return; // the pictures stay
  let library = null;

  async function load() {
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const source = await new Response(stream).text();
    const same = { createScript: (text) => text };
    const policy = window.trustedTypes ? trustedTypes.createPolicy("comap-plots", same) : same;
    const script = document.createElement("script");
    script.textContent = policy.createScript(source); // the page's policy knows its hash
    document.head.append(script);
    packed.remove();
    return window.Plotly;
  }

  const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const plain = (text) => text.replace(/[&<>]/g, (char) => ESCAPES[char]);
  const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"];

  const UNITS = [[1e9, "B"], [1e6, "M"], [1e3, "k"], [1, ""]];

  function brief(number) {
    const [size, name] = UNITS.find(([least]) => Math.abs(number) >= 0.1 * least) || [1, ""];
    return `${Number((number / size).toPrecision(3))}${name}`;
  }

  function faded(colour, share) {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${red},${green},${blue},${share})`;
  }

  function band(curve, colour, group) {
    const known = curve.x.map((x, i) => [x, curve.low[i], curve.high[i]]).filter((one) => one[1] !== null);
    return {
      type: "scatter", mode: "lines", hoverinfo: "skip", line: { width: 0 }, legendgroup: group,
      x: [...known.map((one) => one[0]), ...known.map((one) => one[0]).reverse()],
      y: [...known.map((one) => one[2]), ...known.map((one) => one[1]).reverse()],
      fill: "toself", fillcolor: faded(colour, 0.16),
    };
  }

  function traces(chart) {
    return chart.curves.flatMap((curve, i) => {
      const colour = themed(`--series-${i % 6}`);
      const group = String(i);
      const told = {
        name: plain(curve.name), text: curve.text.map((text) => [curve.name, ...text.split("; ")].map(plain).join("<br>")),
        hovertemplate: "%{text}<extra></extra>", legendgroup: group, x: curve.x, y: curve.y,
      };
      if (chart.kind === "bar") {
        const spread = curve.y.map((y, j) => (curve.high[j] === null ? 0 : curve.high[j] - y));
        const error = { type: "data", array: spread, color: themed("--ink"), thickness: 1.2, width: 3 };
        return [{ ...told, type: "bar", textposition: "none", marker: { color: colour, opacity: i < 6 ? 1 : 0.5 }, error_y: error }];
      }
      const line = { color: colour, width: 2, dash: DASHES[Math.floor(i / 6) % 4] };
      const marker = { size: 7, symbol: SYMBOLS[i % 6], color: colour };
      const mode = curve.x.length > 40 ? "lines" : "lines+markers";
      const drawn = { ...told, type: "scatter", mode, line, marker };
      return curve.low.some((low) => low !== null) ? [band(curve, colour, group), drawn] : [drawn];
    });
  }

  function layout(chart, element) {
    const axis = {
      gridcolor: themed("--grid"), linecolor: themed("--soft"), zeroline: false, automargin: true,
      tickcolor: themed("--soft"), title: { standoff: 8, font: { size: 13 } },
    };
    const xaxis = { ...axis, showgrid: false, showline: true, ticks: "outside" };
    xaxis.title = { ...axis.title, text: plain(chart.x) };
    if (chart.log) {
      const known = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
      Object.assign(xaxis, { type: "log" });
      if (known.length <= 8) Object.assign(xaxis, { tickmode: "array", tickvals: known, ticktext: known.map(brief) });
    }
    if (chart.kind === "bar") {
      const names = chart.labels.map(plain);
      Object.assign(xaxis, { tickmode: "array", tickvals: names.map((_, i) => i), ticktext: names });
      const crowded = names.join("").length * 9 > element.clientWidth;
      Object.assign(xaxis, { ticks: "", fixedrange: true, tickangle: crowded ? -28 : 0 });
    }
    return {
      xaxis, yaxis: { ...axis, title: { ...axis.title, text: plain(chart.y) } },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      barmode: "group", bargap: 0.25, hovermode: "closest", hoverdistance: 60,
      margin: { l: 52, r: 12, t: 10, b: 40 }, dragmode: "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: themed("--soft") },
      hoverlabel: { bgcolor: themed("--card"), bordercolor: themed("--line"), font: { color: themed("--ink"), size: 12.5 }, align: "left", namelength: -1 },
      width: element.clientWidth, height: element.clientHeight,
    };
  }

  const drawn = new Set();
  const config = { displayModeBar: false, displaylogo: false, scrollZoom: false, showTips: false, doubleClick: "reset" };

  async function draw(element) {
    const chart = data.charts[Number(element.dataset.chart)];
    library ||= load();
    const plotly = await library;
    const size = layout(chart, element);
    const picture = element.firstElementChild;
    const place = make("div", "");
    element.append(place);
    await plotly.newPlot(place, traces(chart), size, config);
    picture.remove();
    element.classList.add("drawn");
    drawn.add(element);
    switches(element, chart, place, plotly);
  }

  // The legend's items become buttons that hide and show their curves.
  function switches(element, chart, place, plotly) {
    const legend = element.parentElement.querySelector(".legend");
    const named = chart.curves.map((curve, i) => [i, curve]).filter(([, curve]) => curve.x.length);
    [...legend.children].forEach((item, place_) => {
      const [group] = named[place_];
      const button = make("button", "", ...item.childNodes);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(on));
        const places = place.data.flatMap((one, i) => (one.legendgroup === String(group) ? [i] : []));
        plotly.restyle(place, { visible: on }, places);
      });
      item.replaceChildren(button);
    });
    const whole = make("button", "whole", "whole range");
    whole.type = "button";
    whole.addEventListener("click", () => plotly.relayout(place, { "xaxis.autorange": true, "yaxis.autorange": true }));
    legend.append(make("li", "", whole));
  }

  async function again(anew) {
    const plotly = await library;
    for (const element of drawn) {
      const chart = data.charts[Number(element.dataset.chart)];
      const place = element.firstElementChild;
      const hidden = place.data.map((one) => one.visible);
      const lines = anew ? traces(chart).map((one, i) => ({ ...one, visible: hidden[i] })) : place.data;
      await plotly.react(place, lines, layout(chart, element), config);
    }
  }

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => again(false), 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again(true));

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target).catch((error) => console.error("a plot was not drawn:", error));
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll(".chart").forEach((element) => seen.observe(element));
})();
