"""What the viewer looks like: letters that stand out, any width, names for what has no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.benchmarks.browser import Browser
from comap.envs.conformance.transcripts import load

pytest.importorskip("jinja2", reason="the extra viz is not installed")
KIT = load(f"{Path(__file__).with_name('viewer_kit.py')}:KIT")
shown = KIT.shown

CONTRAST = """
const parse = (color) => {
  const numbers = color.match(/[\\d.]+/g).map(Number);
  return numbers.length < 4 ? [...numbers, 1] : numbers;
};
const linear = (v) => (v / 255 <= 0.03928 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const color = parse(getComputedStyle(one).backgroundColor);
    if (color[3] > 0.99) return color;
  }
  return [255, 255, 255];
};
const low = [];
for (const one of document.body.querySelectorAll("*")) {
  if (!one.checkVisibility() || one.closest(":disabled, .spoken")) continue;
  if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
  const own = light(parse(getComputedStyle(one).color));
  const [most, least] = [own, light(behind(one))].sort((a, b) => b - a);
  const ratio = (most + 0.05) / (least + 0.05);
  if (ratio < 4.5) low.push(`${one.localName}.${one.className} ${ratio.toFixed(2)}`);
}
return low;
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_letters_stand_out(browser: Browser, page: Path, colours: str) -> None:
    media = [{"name": "prefers-color-scheme", "value": colours}]
    browser.cdp("Emulation.setEmulatedMedia", features=media)
    shown(browser, page, "#1/1?q=safe")
    browser.wait("document.querySelector('#step mark.hit')")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run(CONTRAST) == []
    browser.cdp("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [360, 700, 1100, 2200])
def test_every_width_will_do(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 800)
    shown(browser, page, "#1/1?q=safe")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), width
    assert browser.run("return document.getElementById('steps').clientHeight") > 90


def test_what_has_no_text_has_a_name(browser: Browser, page: Path) -> None:
    shown(browser, page, "#1/1")
    nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "listbox", "option", "slider", "combobox", "searchbox", "group", "dialog"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in wanted - {"group"}
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
