// A stand-in for a browser's document: enough for the viewer's script to run without a browser.
// Usage: node stand_in_for_a_browser.js PAGE #episode-1-step-1
// It opens every folded part, and prints the tags and the text of the detail as JSON.
"use strict";
const fs = require("fs");
const vm = require("vm");

class Element {
  constructor(tag) {
    Object.assign(this, { tagName: tag, childNodes: [], listeners: {}, attributes: {} });
    Object.assign(this, { className: "", isOpen: false, hidden: false, value: "" });
  }
  get children() { return this.childNodes.filter((child) => child instanceof Element); }
  get childElementCount() { return this.children.length; }
  get firstElementChild() { return this.children[0] || null; }
  get textContent() { return this.childNodes.map((child) => (child instanceof Element ? child.textContent : child)).join(""); }
  set textContent(text) { this.childNodes = [String(text)]; }
  get open() { return this.isOpen; }
  set open(value) {
    const changed = value !== this.isOpen;
    this.isOpen = value;
    if (changed) for (const listener of this.listeners.toggle || []) listener();
  }
  append(...nodes) { this.childNodes.push(...nodes.map((node) => (node instanceof Element ? node : String(node)))); }
  prepend(...nodes) { this.childNodes.unshift(...nodes); }
  replaceChildren(...nodes) { this.childNodes = nodes; }
  addEventListener(name, listener) { (this.listeners[name] ||= []).push(listener); }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  contains() { return false; }
  focus() {}
  scrollIntoView() {}
  all() { return this.children.flatMap((child) => [child, ...child.all()]); }
  querySelectorAll(selector) {
    const [tag, name] = selector.split(".");
    return this.all().filter((one) => one.tagName === tag && (!name || one.className.split(" ").includes(name)));
  }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const elements = {};
for (const id of ["data", "viewer", "episodes", "steps", "detail", "filter", "shown"]) elements[id] = new Element("div");
elements.data.textContent = /<script type="application\/json" id="data">([^]*?)<\/script>/.exec(page)[1];
const document = {
  activeElement: null,
  addEventListener() {},
  createElement: (tag) => new Element(tag),
  getElementById: (id) => elements[id],
};
const around = { document, location: { hash: process.argv[3] || "" }, history: { replaceState() {} } };
vm.runInNewContext(/<script>([^]*?)<\/script>/.exec(page)[1], { ...around, setTimeout, clearTimeout });
for (let depth = 0; depth < 3; depth++)
  for (const part of elements.detail.querySelectorAll("details")) part.open = true;
const tags = [...new Set(elements.detail.all().map((one) => one.tagName))].sort();
console.log(JSON.stringify({ tags, text: elements.detail.textContent }));
