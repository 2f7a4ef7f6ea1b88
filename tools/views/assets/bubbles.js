// Draws the panels and moves in them. Data come as JSON (bubble_lanes.py); every text is set as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const words = data.words, looks = Object.keys(data.looks);
  const root = document.documentElement, tip = document.getElementById("tip"), live = document.getElementById("live");
  const AXIS = 20, GAP = 4, FONT = "11px system-ui, sans-serif", LEAST_NS = 200;
  const HEIGHTS = { device: 22, launches: 16, thread: 26, cpu: 20, interrupts: 11 };
  // Patterns of slices in addition to colours, so that states are distinguishable without colours.
  const PATTERNS = {
    runnable: "stripes", uninterruptible: "cross", unknown: "dots", hole: "dots", stopped: "bars", collective: "bars",
    softirq: "stripes", memset: "stripes", lock: "bars", network: "dots",
  };
  const OPEN = new Set(["cpu_idle", "sleeping", "idle", "dead"]); // pale: nothing goes on
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", value), text);

  // --- colours and patterns, by theme ------------------------------------------------------------------
  let theme = {};
  function readTheme() {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    theme = { look: {}, on: {} };
    for (const name of ["page", "ink", "quiet", "line", "field", "bubble", "edge", "found", "arrow"]) theme[name] = colour(name);
    for (const look of looks) {
      const base = colour("look-" + look);
      theme.look[look] = pattern(base, PATTERNS[look]);
      theme.on[look] = bright(base) > 0.36 ? "#000000" : "#ffffff";
    }
  }
  function bright(hex) { // relative luminance, WCAG 2
    const part = (at) => { const v = parseInt(hex.slice(at, at + 2), 16) / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  }
  function pattern(colour, kind) {
    if (!kind) return colour;
    const tile = document.createElement("canvas"), size = 8;
    tile.width = tile.height = size;
    const c = tile.getContext("2d");
    c.fillStyle = colour;
    c.fillRect(0, 0, size, size);
    c.strokeStyle = c.fillStyle = theme.page;
    c.globalAlpha = 0.6;
    c.lineWidth = 1.6;
    const line = (...p) => { c.beginPath(); c.moveTo(p[0], p[1]); c.lineTo(p[2], p[3]); c.stroke(); };
    if (kind === "stripes" || kind === "cross") { line(-2, 2, 2, -2); line(-2, 10, 10, -2); line(6, 10, 10, 6); }
    if (kind === "cross") { line(-2, 6, 2, 10); line(-2, -2, 10, 10); line(6, -2, 10, 2); }
    if (kind === "bars") line(4, 0, 4, size);
    if (kind === "dots") { c.fillRect(1, 1, 2, 2); c.fillRect(5, 5, 2, 2); }
    return c.createPattern(tile, "repeat");
  }

  // --- times ---------------------------------------------------------------------------------------------
  function duration(ns) {
    const [unit, size] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return (size === 1 ? String(Math.round(ns)) : (ns / size).toFixed(3)) + " " + unit;
  }
  function tickStep(span, count) {
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((m) => m * power >= rough);
  }

  // --- a panel -------------------------------------------------------------------------------------------
  class Panel {
    constructor(section, source) {
      Object.assign(this, source, { section, canvas: section.querySelector("canvas"), chosen: null });
      this.from = this.low;
      this.to = this.high;
      let top = AXIS;
      for (const lane of this.lanes) {
        lane.size = HEIGHTS[lane.sort];
        lane.deep = lane.depth.reduce((most, depth) => Math.max(most, Math.min(depth, 3)), 0) + 1;
        lane.top = top;
        lane.ends = []; // the furthest end so far: with it a search finds all that reach into a span
        lane.at.reduce((most, at, i) => (lane.ends[i] = Math.max(most, at + lane.length[i])), -Infinity);
        top += lane.size * lane.deep + GAP;
      }
      this.height = top + 4;
      this.canvas.style.height = this.height + "px";
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.canvas);
    }
    get gutter() { return Math.min(170, this.canvas.clientWidth * 0.24); }
    x(ns) { return this.gutter + ((ns - this.from) / (this.to - this.from)) * (this.canvas.clientWidth - this.gutter); }
    ns(x) { return this.from + ((x - this.gutter) / (this.canvas.clientWidth - this.gutter)) * (this.to - this.from); }

    show(from, to) { // keeps within what the panel holds
      const span = Math.min(Math.max(to - from, LEAST_NS), this.high - this.low);
      this.from = Math.min(Math.max(from, this.low), this.high - span);
      this.to = this.from + span;
      this.later();
    }
    zoom(factor, at = (this.from + this.to) / 2) { this.show(at - (at - this.from) * factor, at + (this.to - at) * factor); }
    pan(share) { const by = (this.to - this.from) * share; this.show(this.from + by, this.to + by); }
    fit() { this.show(this.low, this.high); }
    later() { // at most one drawing per frame
      this.waiting ??= requestAnimationFrame(() => { this.waiting = undefined; this.draw(); });
    }

    draw() {
      const canvas = this.canvas, scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
      if (!width) return;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(this.height * scale);
      const c = canvas.getContext("2d");
      c.scale(scale, scale);
      c.font = FONT;
      c.textBaseline = "middle";
      c.fillStyle = theme.page;
      c.fillRect(0, 0, width, this.height);
      this.drawAxis(c, width);
      c.save();
      c.beginPath();
      c.rect(this.gutter, 0, width - this.gutter, this.height);
      c.clip();
      this.drawGround(c, width);
      this.lanes.forEach((lane, index) => this.drawLane(c, lane, index, width));
      this.drawArrows(c);
      this.drawEdges(c);
      c.restore();
      this.drawTitles(c);
    }
    drawAxis(c, width) {
      const step = tickStep(this.to - this.from, (width - this.gutter) / 110);
      const [unit, size] = step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["µs", 1e3] : ["ns", 1];
      c.strokeStyle = theme.line;
      c.fillStyle = theme.quiet;
      c.lineWidth = 1;
      for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
        const x = Math.round(this.x(at)) + 0.5;
        c.beginPath();
        c.moveTo(x, AXIS - 4);
        c.lineTo(x, this.height);
        c.stroke();
        c.fillText(Math.round(at / size) + " " + unit, x + 3, 8);
      }
    }
    drawGround(c, width) { // the lanes, and the bubble through all of them
      c.fillStyle = theme.field;
      for (const lane of this.lanes) c.fillRect(this.gutter, lane.top, width, lane.size * lane.deep);
      c.fillStyle = theme.bubble;
      c.fillRect(this.x(0), AXIS - 4, this.x(this.length) - this.x(0), this.height);
    }
    drawEdges(c) {
      c.strokeStyle = theme.edge;
      c.lineWidth = 1.5;
      for (const x of [this.x(0), this.x(this.length)]) {
        c.beginPath();
        c.moveTo(x, AXIS - 6);
        c.lineTo(x, this.height);
        c.stroke();
      }
    }
    drawTitles(c) {
      for (const lane of this.lanes) {
        c.fillStyle = theme.ink;
        fitted(c, lane.title, 2, lane.top + lane.size / 2, this.gutter - 8);
      }
    }
    drawLane(c, lane, index, width) {
      const last = new Map(); // by look and depth: the pixel up to which it is drawn
      for (let i = this.first(lane, this.from); i < lane.at.length && lane.at[i] < this.to; i++) {
        const look = looks[lane.look[i]], depth = Math.min(lane.depth[i], 3), key = look + depth;
        const left = Math.max(this.x(lane.at[i]), this.gutter - 2);
        const right = Math.max(Math.min(this.x(lane.at[i] + lane.length[i]), width + 2), left + 1);
        if (right <= last.get(key)) continue;
        last.set(key, right);
        const top = lane.top + depth * lane.size, high = lane.size - 1;
        c.globalAlpha = matches && !matches.has(index, this, i) ? 0.25 : look === "hole" ? 0.8 : 1;
        c.fillStyle = theme.look[look];
        c.fillRect(left, top, right - left, high);
        if (right - left > 3) { // an edge, so that neighbours of one look are two
          c.fillStyle = theme.page;
          c.fillRect(right - 0.75, top, 0.75, high);
        }
        if (right - left > 26 && high > 9) this.label(c, lane, i, look, left, right, top + high / 2);
        c.globalAlpha = 1;
        if (this.chosen && this.chosen[0] === index && this.chosen[1] === i) {
          c.strokeStyle = theme.found;
          c.lineWidth = 2;
          c.strokeRect(left + 1, top + 1, Math.max(right - left - 2, 1), high - 2);
        }
      }
    }
    label(c, lane, i, look, left, right, middle) {
      const text = this.texts[lane.text[i]], wide = Math.min(c.measureText(text).width, right - left - 6);
      if (PATTERNS[look]) { // patterns make letters hard to read
        c.fillStyle = theme.page;
        c.fillRect(left + 2, middle - 7, wide + 4, 14);
      }
      c.fillStyle = PATTERNS[look] || OPEN.has(look) ? theme.ink : theme.on[look];
      fitted(c, text, left + 4, middle, right - left - 6);
    }
    drawArrows(c) {
      for (const [kind, fromLane, fromAt, toLane, toAt] of this.arrows) {
        if (Math.max(fromAt, toAt) < this.from || Math.min(fromAt, toAt) > this.to) continue;
        const a = this.lanes[fromLane], b = this.lanes[toLane], down = b.top > a.top;
        const x1 = this.x(fromAt), x2 = this.x(toAt);
        const y1 = kind === "migration" ? a.top + a.size / 2 : down ? a.top + a.size : a.top;
        const y2 = kind === "migration" ? b.top + b.size / 2 : down ? b.top : b.top + b.size;
        c.strokeStyle = c.fillStyle = kind === "migration" ? theme.edge : theme.arrow;
        c.globalAlpha = kind === "launch" ? 0.55 : 0.9;
        c.lineWidth = kind === "migration" ? 1.8 : 1;
        c.setLineDash(kind === "wake" ? [3, 2] : []);
        c.beginPath();
        c.moveTo(x1, y1);
        c.lineTo(x2, y2);
        c.stroke();
        c.setLineDash([]);
        const angle = Math.atan2(y2 - y1, x2 - x1);
        c.beginPath();
        c.moveTo(x2, y2);
        for (const turn of [-0.4, 0.4]) c.lineTo(x2 - 6 * Math.cos(angle + turn), y2 - 6 * Math.sin(angle + turn));
        c.fill();
        c.globalAlpha = 1;
      }
    }

    first(lane, ns) { // the first slice that may reach beyond ns
      let low = 0, high = lane.at.length;
      while (low < high) { const middle = (low + high) >> 1; if (lane.ends[middle] <= ns) low = middle + 1; else high = middle; }
      return low;
    }
    hit(x, y) { // the slice at a point, as [lane, number], or null; what is drawn later lies on top
      if (x < this.gutter) return null;
      const index = this.lanes.findIndex((lane) => y >= lane.top && y < lane.top + lane.size * lane.deep);
      if (index < 0) return null;
      const lane = this.lanes[index], depth = Math.floor((y - lane.top) / lane.size), slack = this.ns(x + 1) - this.ns(x);
      let found = null;
      for (let i = this.first(lane, this.ns(x) - slack); i < lane.at.length && lane.at[i] <= this.ns(x) + slack; i++) {
        if (Math.min(lane.depth[i], 3) !== depth) continue;
        const covers = lane.at[i] <= this.ns(x) && lane.at[i] + lane.length[i] > this.ns(x);
        const near = lane.at[i] + lane.length[i] > this.ns(x) - slack;
        if (covers || (near && !found)) found = [index, i];
      }
      return found;
    }
    describe([index, i]) {
      const lane = this.lanes[index], text = this.texts[lane.text[i]], look = data.looks[looks[lane.look[i]]];
      return [
        text === look ? text : text + " · " + look,
        sign(words.lasted, duration(lane.length[i])),
        sign(words.at, (lane.at[i] < 0 ? "−" : "+") + duration(Math.abs(lane.at[i]))),
        ...lane.more[i].map((line) => this.texts[line]),
        lane.title,
      ];
    }
    choose(slice) {
      this.chosen = slice;
      if (slice) {
        const lane = this.lanes[slice[0]], at = lane.at[slice[1]], length = lane.length[slice[1]];
        live.textContent = this.describe(slice).join("; ");
        if (at + length < this.from || at > this.to) {
          const span = Math.max(this.to - this.from, 0);
          this.show(at + length / 2 - span / 2, at + length / 2 + span / 2);
        }
      }
      this.later();
    }
    step(by) { // to the neighbour of the chosen slice; at first the thread's within the bubble
      const fresh = Math.max(this.lanes.findIndex((lane) => lane.sort === "thread"), 0);
      if (!this.lanes.length) return;
      const [index, i] = this.chosen ?? [fresh, this.first(this.lanes[fresh], 0) - by];
      const next = i + by;
      if (next < 0 || next >= this.lanes[index].at.length) return;
      this.choose([index, next]);
      const lane = this.lanes[index], box = this.canvas.getBoundingClientRect();
      tell(this.describe(this.chosen), box.left + Math.max(this.x(lane.at[next]), this.gutter), box.top + lane.top + lane.size);
    }

    listen() {
      const canvas = this.canvas;
      let drag = null;
      canvas.addEventListener("pointerdown", (event) => {
        current = this;
        drag = { x: event.offsetX, from: this.from, to: this.to, moved: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (drag) {
          const by = ((event.offsetX - drag.x) / (canvas.clientWidth - this.gutter)) * (drag.to - drag.from);
          drag.moved ||= Math.abs(event.offsetX - drag.x) > 3;
          if (drag.moved) { tip.hidden = true; this.show(drag.from - by, drag.to - by); }
          return;
        }
        const slice = this.hit(event.offsetX, event.offsetY);
        if (slice) tell(this.describe(slice), event.clientX, event.clientY); else tip.hidden = true;
      });
      canvas.addEventListener("pointerup", (event) => {
        if (drag && !drag.moved) this.choose(this.hit(event.offsetX, event.offsetY));
        drag = null;
      });
      canvas.addEventListener("pointercancel", () => (drag = null));
      canvas.addEventListener("pointerleave", () => (tip.hidden = true));
      canvas.addEventListener("dblclick", () => this.fit());
      canvas.addEventListener("focus", () => (current = this));
      canvas.addEventListener("wheel", (event) => { // the plain wheel scrolls the page
        const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
        if (!event.ctrlKey && !event.metaKey && !sideways) return;
        event.preventDefault();
        if (sideways) this.pan((event.deltaX || event.deltaY) / 1000);
        else this.zoom(Math.exp(event.deltaY / 300), this.ns(event.offsetX));
      }, { passive: false });
      for (const button of this.section.querySelectorAll("[data-do]")) {
        button.addEventListener("click", () => {
          current = this;
          ({ zoom_in: () => this.zoom(0.6), zoom_out: () => this.zoom(1 / 0.6), fit: () => this.fit() })[button.dataset.do]();
        });
      }
    }
  }
  function fitted(c, text, x, y, width) { // cut to the width, with an ellipsis
    if (width < 8) return;
    if (c.measureText(text).width > width) {
      let low = 0, high = text.length;
      while (low < high) { const middle = (low + high + 1) >> 1; if (c.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1; }
      if (!low) return;
      text = text.slice(0, low) + "…";
    }
    c.fillText(text, x, y);
  }
  function tell(lines, x, y) {
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
  }

  // --- search --------------------------------------------------------------------------------------------
  let matches = null, place = -1;
  class Matches {
    constructor(query) {
      this.all = [];
      this.sets = new Map();
      for (const panel of panels) {
        const fits = panel.texts.map((text) => text.toLowerCase().includes(query));
        const named = data_looks.map((word) => word.toLowerCase().includes(query));
        panel.lanes.forEach((lane, index) => {
          const set = new Set();
          for (let i = 0; i < lane.at.length; i++) {
            if (fits[lane.text[i]] || named[lane.look[i]] || lane.more[i].some((line) => fits[line])) {
              set.add(i);
              this.all.push([panel, index, i]);
            }
          }
          this.sets.set(lane, set);
        });
      }
    }
    has(index, panel, i) { return this.sets.get(panel.lanes[index]).has(i); }
  }
  const data_looks = Object.values(data.looks), search = document.getElementById("search"), found = document.getElementById("found");
  function look() {
    const query = search.value.trim().toLowerCase();
    matches = query ? new Matches(query) : null;
    place = -1;
    report();
    for (const panel of panels) { panel.chosen = null; panel.later(); }
  }
  function report() {
    found.textContent = !matches ? "" : matches.all.length ? sign(words.matches, place + 1, matches.all.length) : words.no_match;
  }
  function go(by) {
    if (!matches?.all.length) return;
    place = (Math.max(place, by < 0 ? 0 : -1) + by + matches.all.length) % matches.all.length;
    const [panel, index, i] = matches.all[place];
    for (const other of panels) if (other !== panel && other.chosen) other.choose(null);
    current = panel;
    panel.choose([index, i]);
    panel.canvas.scrollIntoView({ block: "nearest" });
    report();
  }

  // --- the page ------------------------------------------------------------------------------------------
  function paint(name) {
    root.dataset.theme = name;
    readTheme();
    legend();
    for (const panel of panels) panel.draw();
  }
  function legend() { // only what is there
    const used = new Set(panels.flatMap((panel) => panel.lanes.flatMap((lane) => lane.look)));
    const entries = looks.filter((name, index) => used.has(index) && !name.startsWith("thread_")).map((name) => {
      const box = document.createElement("canvas"), entry = document.createElement("span");
      box.width = 44;
      box.height = 24;
      const c = box.getContext("2d");
      c.scale(2, 2);
      c.fillStyle = theme.look[name];
      c.fillRect(0, 0, 22, 12);
      entry.append(box, data.looks[name]);
      return entry;
    });
    document.getElementById("legend").replaceChildren(...entries);
  }
  const panels = [...document.querySelectorAll(".panel")].map((section, index) => new Panel(section, data.panels[index]));
  let current = panels[0] ?? null;
  const keys = document.getElementById("keys"), dark = matchMedia("(prefers-color-scheme: dark)");
  const swap = () => paint(root.dataset.theme === "dark" ? "light" : "dark");
  const move = (by) => {
    const next = panels[Math.min(Math.max(panels.indexOf(current) + by, 0), panels.length - 1)];
    if (!next) return;
    current = next;
    next.canvas.focus({ preventScroll: true });
    next.section.scrollIntoView({ block: "start" });
  };
  const actions = {
    w: () => current?.zoom(0.7), s: () => current?.zoom(1 / 0.7), "+": () => current?.zoom(0.7), "=": () => current?.zoom(0.7),
    "-": () => current?.zoom(1 / 0.7), a: () => current?.pan(-0.2), d: () => current?.pan(0.2), ArrowLeft: () => current?.pan(-0.2),
    ArrowRight: () => current?.pan(0.2), 0: () => current?.fit(), ",": () => current?.step(-1), ".": () => current?.step(1),
    j: () => move(1), k: () => move(-1), "/": () => { search.focus(); search.select(); }, n: () => go(1), N: () => go(-1),
    t: swap, "?": () => keys.showModal(), Escape: () => { tip.hidden = true; current?.choose(null); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.target === search) {
      if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") { search.value = ""; look(); search.blur(); } else return;
    } else {
      const action = actions[event.key];
      if (!action) return;
      action();
    }
    event.preventDefault();
  });
  search.addEventListener("input", look);
  document.getElementById("theme").addEventListener("click", swap);
  document.getElementById("help").addEventListener("click", () => keys.showModal());
  keys.querySelector("button").addEventListener("click", () => keys.close()); // no form: sandboxed frames block them
  dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
  addEventListener("scroll", () => (tip.hidden = true), { passive: true });
  paint(root.dataset.theme ?? (dark.matches ? "dark" : "light")); // set by an embedding page
})();
