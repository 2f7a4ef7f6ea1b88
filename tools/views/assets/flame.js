// A flame graph in a canvas: one side, or the difference of two. Columns come from flame_data.py; every text is set as
// text, never as markup. Other pages use it too: `new Flame(container, Flame.read(json), words, options)`.
//   tree     nodes breadth first (a parent before its children, siblings in drawing order), node 0 is everything
//   options  unit ("samples", "ns", "bytes" or a name), period (of one sample, in the unit; 0 unknown), lang, proven
//            (Uint8Array, or a function of a node's shares and the sums of both sides), onChoose(frame)
"use strict";
const Flame = (() => {
  const ROW = 19, LEAST = 0.4, TEXT = 26, PAD = 4, MOST_HEIGHT = 8000;
  const { STEPS, LEAST_SCALE, FONT, LETTERS, sign, make, totals, figure, amount, percent, points, looks, shade } = FlameParts;

  let number = 0;
  class Flame {
    constructor(container, tree, words, options = {}) {
      Object.assign(this, { tree, words, unit: "samples", period: 0, lang: document.documentElement.lang || "en", proven: tree.proven }, options);
      this.container = container;
      this.icicle = true;
      this.side = tree.own.length - 1; // a difference starts with the widths of what is now
      this.zoomed = this.chosen = 0;
      this.hover = -1;
      this.past = [];
      this.matched = null; // of labels
      this.shades = tree.labels.map(shade);
      const { parent } = tree, depth = (this.depth = new Int32Array(parent.length));
      for (let i = 1; i < depth.length; i++) depth[i] = depth[parent[i]] + 1;
      this.build();
      this.theme();
      this.show(tree.own);
      new ResizeObserver(() => this.draw()).observe(this.box);
      new MutationObserver(() => this.theme(true)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.theme(true));
      addEventListener("beforeprint", () => this.print(true));
      addEventListener("afterprint", () => this.print(false));
    }

    // --- the elements ------------------------------------------------------------------------------------------
    build() {
      const { words, container } = this, id = "flame" + ++number;
      container.classList.add("flame");
      this.tools = make("div", "flame-tools");
      this.tools.setAttribute("role", "toolbar");
      this.tools.setAttribute("aria-label", words.tools);
      const label = make("label", "flame-search", words.search + " ");
      this.search = make("input");
      Object.assign(this.search, { type: "search", placeholder: words.search_hint, autocomplete: "off", spellcheck: false, maxLength: 300 });
      label.append(this.search);
      this.found = make("output", "flame-found");
      this.found.setAttribute("aria-live", "polite");
      this.tools.append(label, this.found, make("span", "space"));
      this.sideButtons = [];
      if (this.tree.own.length === 2) {
        const group = make("span", "flame-sides");
        group.setAttribute("role", "group");
        group.setAttribute("aria-label", words.widths);
        this.sideButtons = [words.before_widths, words.after_widths].map((text, side) => this.button(text, () => this.turn(side), group));
        this.tools.append(group);
      }
      this.turned = this.button(words.root_below, () => this.upset());
      this.reset = this.button(words.reset, () => this.zoom(0));
      this.crumbs = make("ol", "flame-crumbs");
      this.crumbs.setAttribute("aria-label", words.path);
      this.box = make("div", "flame-box");
      this.space = make("div", "flame-space");
      this.canvas = make("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", words.graph);
      this.canvas.setAttribute("aria-describedby", id + "-live");
      this.space.append(this.canvas);
      this.box.append(this.space);
      this.live = make("div", "unseen");
      this.live.id = id + "-live";
      this.live.setAttribute("aria-live", "polite");
      this.legend = make("ul", "flame-legend");
      this.legend.setAttribute("aria-label", words.legend);
      this.tip = make("div", "flame-tip");
      this.tip.setAttribute("role", "tooltip");
      this.tip.hidden = true;
      container.replaceChildren(this.tools, this.crumbs, this.box, this.legend, this.live, this.tip);
      this.search.addEventListener("input", () => this.seek(this.search.value));
      this.search.addEventListener("keydown", (event) => this.searchKey(event));
      this.box.addEventListener("scroll", () => { this.hide(); this.draw(); });
      this.canvas.addEventListener("mousemove", (event) => this.point(event));
      this.canvas.addEventListener("mouseleave", () => { this.hover = -1; this.hide(); this.draw(); });
      this.canvas.addEventListener("click", (event) => this.click(event));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.canvas.addEventListener("focus", () => this.draw());
      this.canvas.addEventListener("blur", () => { this.hide(); this.draw(); });
    }
    button(text, act, where = this.tools) {
      const one = make("button", "", text);
      one.type = "button";
      one.addEventListener("click", act);
      where.append(one);
      return one;
    }
    theme(again = false) {
      this.look = looks(devicePixelRatio || 1);
      if (again) { this.drawLegend(); this.draw(); }
    }

    // --- what is shown ---------------------------------------------------------------------------------------
    show(own, options = {}) { // other weights of the same nodes: an array, or the arrays of both sides
      Object.assign(this, options);
      this.own = Array.isArray(own) ? own : [own];
      this.total = this.own.map((side) => totals(this.tree, side));
      this.side = Math.min(this.side, this.own.length - 1);
      this.start = this.total.map((total) => this.starts(total));
      this.differs = this.own.length === 2;
      if (this.differs) this.compare();
      if (!(this.total[this.side][this.zoomed] > 0)) this.zoomed = 0;
      if (!(this.total[this.side][this.chosen] > 0)) this.chosen = this.zoomed;
      if (this.matched) this.count();
      this.drawLegend();
      this.settle();
    }
    starts(total) {
      const { parent } = this.tree, start = new Float64Array(total.length), next = new Float64Array(total.length);
      for (let i = 1; i < total.length; i++) {
        const above = parent[i];
        next[i] = start[i] = next[above];
        next[above] += total[i];
      }
      return start;
    }
    compare() { // of each node: by how many points its share differs, and the look that has
      const [before, after] = this.total, count = before.length, change = (this.change = new Float64Array(count));
      const sure = (this.sure = new Uint8Array(count)), given = this.proven;
      this.most = 0;
      for (let i = 0; i < count; i++) {
        const was = before[0] > 0 ? before[i] / before[0] : 0, is = after[0] > 0 ? after[i] / after[0] : 0;
        change[i] = 100 * (is - was);
        sure[i] = typeof given === "function" ? +given(was, is, before[0], after[0]) : given ? given[i] : 1;
        if (sure[i]) this.most = Math.max(this.most, Math.abs(change[i]));
      }
      this.changed = Array.from(change, (value, i) => {
        if (Math.abs(value) <= 1e-9 || (!this.most && sure[i])) return "same";
        if (!sure[i]) return "unproven";
        return (value > 0 ? "up" : "down") + Math.min(Math.max(Math.ceil((Math.abs(value) / this.most) * STEPS - 1e-9), 1), STEPS);
      });
    }
    lookOf(node) {
      const kind = this.tree.kinds[this.tree.frame[node]];
      return this.differs && kind !== "root" && kind !== "rest" ? this.changed[node] : kind;
    }
    label(node) {
      return this.tree.labels[this.tree.frame[node]];
    }
    share(node, side = this.side) {
      return this.total[side][0] > 0 ? this.total[side][node] / this.total[side][0] : 0;
    }
    turn(side) {
      this.side = side;
      if (!(this.total[side][this.zoomed] > 0)) this.zoomed = 0;
      if (this.matched) this.count();
      this.settle();
    }
    upset() {
      this.icicle = !this.icicle;
      this.settle();
      this.reveal(this.zoomed);
    }
    settle() { // how many rows there are, and all else that hangs on zoom and side
      const total = this.total[this.side], start = this.start[this.side], { parent } = this.tree;
      const from = start[this.zoomed], width = total[this.zoomed] || 1, least = (width * LEAST) / Math.max(this.box.clientWidth, 300);
      let rows = this.depth[this.zoomed] + 1;
      const inside = new Uint8Array(total.length);
      inside[this.zoomed] = 1;
      for (let i = this.zoomed + 1; i < total.length; i++) {
        if (!inside[parent[i]]) continue;
        inside[i] = 1;
        if (total[i] >= least && this.depth[i] >= rows) rows = this.depth[i] + 1;
      }
      this.inside = inside;
      for (let at = parent[this.zoomed]; at >= 0; at = parent[at]) inside[at] = 2;
      this.rows = rows;
      this.view = { from, width };
      this.space.style.height = rows * ROW + 2 + "px";
      this.sideButtons.forEach((one, side) => one.setAttribute("aria-pressed", String(side === this.side)));
      this.turned.setAttribute("aria-pressed", String(!this.icicle));
      this.reset.disabled = this.zoomed === 0;
      this.drawCrumbs();
      this.draw();
    }
    zoom(node, remember = true) {
      if (node !== this.zoomed && remember) this.past.push(this.zoomed);
      if (this.past.length > 200) this.past.shift();
      this.zoomed = this.chosen = node;
      this.hide();
      this.settle();
      this.reveal(node);
      this.say(node);
    }
    back() {
      const to = this.past.length ? this.past.pop() : this.tree.parent[this.zoomed];
      if (to >= 0) this.zoom(this.total[this.side][to] > 0 ? to : 0, false);
    }
    drawCrumbs() {
      const path = [];
      for (let at = this.zoomed; at >= 0; at = this.tree.parent[at]) path.unshift(at);
      const shown = path.length > 7 ? [path[0], -1, ...path.slice(-5)] : path;
      this.crumbs.hidden = path.length < 2;
      this.crumbs.replaceChildren(...shown.map((node) => {
        const item = make("li");
        if (node < 0) item.textContent = "…";
        else {
          const one = this.button(this.label(node), () => this.zoom(node), item);
          one.title = this.label(node);
          if (node === this.zoomed) one.setAttribute("aria-current", "true");
        }
        return item;
      }));
    }

    // --- search ------------------------------------------------------------------------------------------------
    seek(text) {
      this.picked = -1;
      if (!text) return this.clear();
      let test, plain = false;
      try { const one = new RegExp(text, "iu"); test = (label) => one.test(label); } catch { plain = true; }
      if (plain) { const low = text.toLowerCase(); test = (label) => label.toLowerCase().includes(low); }
      this.matched = this.tree.labels.map((label, i) => this.tree.kinds[i] !== "root" && this.tree.kinds[i] !== "rest" && test(label));
      this.plain = plain;
      this.count();
      this.draw();
    }
    clear() {
      this.matched = null;
      this.picked = -1;
      this.found.textContent = "";
      this.draw();
      if (this.onChoose) this.onChoose(-1);
    }
    count() { // the share of all that lies at matches or below them
      const { parent, frame } = this.tree, total = this.total[this.side], within = new Uint8Array(total.length);
      let sum = 0;
      this.hits = [];
      for (let i = 1; i < total.length; i++) {
        const hit = this.matched[frame[i]] && total[i] > 0;
        if (hit) this.hits.push(i);
        if (hit && !within[parent[i]]) sum += total[i];
        within[i] = within[parent[i]] || hit ? 1 : 0;
      }
      const text = this.hits.length ? sign(this.words.matches, figure(this.hits.length, this.lang), percent(sum / (total[0] || 1))) : this.words.no_match;
      this.found.textContent = this.plain ? text + " " + this.words.plain : text;
    }
    pick(frame) { // a row of a table: the frame wherever it is, the widest of them chosen
      if (this.picked === frame) { this.search.value = ""; return this.clear(); }
      this.search.value = "";
      this.plain = false;
      this.picked = frame;
      this.matched = this.tree.labels.map((_, i) => i === frame);
      this.count();
      const total = this.total[this.side];
      const widest = this.hits.reduce((best, node) => (best < 0 || total[node] > total[best] ? node : best), -1);
      if (widest >= 0 && !this.inside[widest]) this.zoom(0);
      if (widest >= 0) { this.chosen = widest; this.reveal(widest); this.say(widest); }
      this.draw();
      if (this.onChoose) this.onChoose(frame);
    }
    searchKey(event) {
      if (event.key === "Enter") { event.preventDefault(); this.nextHit(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { this.search.value = ""; this.clear(); this.canvas.focus(); event.stopPropagation(); }
    }
    nextHit(by) {
      if (!this.matched || !this.hits.length) return;
      const at = this.hits.indexOf(this.chosen), count = this.hits.length;
      const to = this.hits[at < 0 ? (by > 0 ? 0 : count - 1) : (at + by + count) % count];
      if (!this.visible(to)) this.zoom(this.wideEnough(to));
      this.choose(to);
    }
    wideEnough(node) { // the nearest caller that makes it visible when zoomed to
      let at = node;
      const total = this.total[this.side], width = this.box.clientWidth || 300;
      while (this.tree.parent[at] >= 0 && (total[node] / total[this.tree.parent[at]]) * width >= 3) at = this.tree.parent[at];
      return at;
    }

    // --- mouse and keyboard ------------------------------------------------------------------------------------
    visible(node) {
      return node >= 0 && this.inside[node] > 0 && this.total[this.side][node] > 0 && this.wide(node) >= LEAST;
    }
    wide(node) {
      return this.inside[node] === 2 ? this.box.clientWidth : (this.total[this.side][node] / this.view.width) * this.box.clientWidth;
    }
    under(event) {
      const box = this.canvas.getBoundingClientRect(), y = event.clientY - box.top + this.box.scrollTop;
      const row = Math.floor((y - 1) / ROW), depth = this.icicle ? row : this.rows - 1 - row;
      const at = this.view.from + ((event.clientX - box.left) / box.width) * this.view.width;
      const total = this.total[this.side], start = this.start[this.side];
      if (depth < 0 || depth >= this.rows) return -1;
      for (let i = 0; i < total.length; i++) {
        if (this.depth[i] !== depth || !this.inside[i]) continue;
        if (this.inside[i] === 2 || (start[i] <= at && at < start[i] + total[i])) return i;
      }
      return -1;
    }
    point(event) {
      const node = this.under(event), before = this.hover;
      this.hover = node;
      if (node !== before) this.draw();
      if (node < 0) return this.hide();
      this.tell(node, event.clientX, event.clientY);
    }
    click(event) {
      const node = this.under(event);
      if (node < 0) return;
      if (this.tree.kinds[this.tree.frame[node]] === "rest") { this.chosen = node; this.draw(); this.say(node); } else this.zoom(node);
      this.hover = -1;
    }
    choose(node) {
      this.chosen = node;
      this.reveal(node);
      this.draw();
      this.say(node);
      const box = this.canvas.getBoundingClientRect(), x = this.left(node), row = this.icicle ? this.depth[node] : this.rows - 1 - this.depth[node];
      this.tell(node, box.left + x + Math.min(this.wide(node) / 2, 120), box.top - this.box.scrollTop + (row + 1) * ROW);
    }
    left(node) {
      return this.inside[node] === 2 ? 0 : ((this.start[this.side][node] - this.view.from) / this.view.width) * this.box.clientWidth;
    }
    reveal(node) { // scroll so far that it is seen
      const row = this.icicle ? this.depth[node] : this.rows - 1 - this.depth[node], top = row * ROW, high = this.box.clientHeight;
      if (top < this.box.scrollTop + ROW || top + 2 * ROW > this.box.scrollTop + high) this.box.scrollTop = this.icicle ? top - 3 * ROW : top - high + 4 * ROW;
    }
    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const inward = this.icicle ? "ArrowDown" : "ArrowUp", outward = this.icicle ? "ArrowUp" : "ArrowDown", at = this.chosen;
      let to = -1;
      if (event.key === inward) to = this.widestBelow(at);
      else if (event.key === outward) to = this.tree.parent[at];
      else if (event.key === "ArrowLeft") to = this.beside(at, -1);
      else if (event.key === "ArrowRight") to = this.beside(at, 1);
      else if (event.key === "Home") to = 0;
      else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); return this.zoom(at); }
      else if (event.key === "Escape" || event.key === "Backspace") { event.preventDefault(); return this.back(); }
      else if (event.key === "n" || event.key === "N") return this.nextHit(event.key === "n" ? 1 : -1);
      else if (event.key === "i") return this.upset();
      else if (event.key === "0") return this.zoom(0);
      else if (event.key === "d" && this.differs) return this.turn(1 - this.side);
      else return;
      event.preventDefault();
      if (to >= 0 && this.visible(to)) this.choose(to);
    }
    widestBelow(node) { // along the path to what is zoomed, else the widest child
      const { parent } = this.tree, total = this.total[this.side];
      let best = -1;
      for (let i = node + 1; i < total.length; i++) {
        if (this.depth[i] > this.depth[node] + 1) break;
        if (parent[i] === node && this.inside[i] && (best < 0 || this.inside[i] === 2 || total[i] > total[best])) best = i;
      }
      return best;
    }
    beside(node, by) {
      for (let i = node + by; i >= 0 && i < this.depth.length && this.depth[i] === this.depth[node]; i += by) if (this.visible(i)) return i;
      return -1;
    }

    // --- telling -------------------------------------------------------------------------------------------------
    lines(node) {
      const { words, tree } = this, frame = tree.frame[node], kind = tree.kinds[frame], lines = [this.label(node)];
      const say = (value) => amount(value, this.unit, words, this.lang);
      if (this.differs) {
        const own = (side) => (this.total[side][0] > 0 ? this.own[side][node] / this.total[side][0] : 0);
        lines.push(sign(words.total_two, percent(this.share(node, 0)), percent(this.share(node, 1))));
        lines.push(sign(words.self_two, percent(own(0)), percent(own(1))));
        lines.push(sign(words.amounts_two, say(this.total[0][node]), say(this.total[1][node])));
        const change = this.change[node];
        if (kind !== "root" && kind !== "rest") lines.push(sign(words.change, points(change)) + (Math.abs(change) <= 1e-9 ? "" : " " + (this.sure[node] ? words.proven : words.not_proven)));
      } else {
        const total = this.total[0], own = this.own[0];
        lines.push(sign(words.total_of, say(total[node]), percent(total[node] / (total[0] || 1))));
        if (kind !== "root" && kind !== "rest") lines.push(sign(words.self_of, say(own[node]), percent(own[node] / (total[0] || 1))));
        if (this.period > 0 && this.unit !== "samples") lines.push(amount(Math.round(total[node] / this.period), "samples", words, this.lang));
        if (this.zoomed && this.inside[node] === 1) lines.push(sign(words.of_zoomed, percent(total[node] / total[this.zoomed])));
      }
      if (tree.codes[frame]) lines.push(tree.codes[frame]);
      if (kind === "rest") lines.push(words.rest_is);
      else if (kind !== "root") lines.push(words["kind_" + kind]);
      return lines;
    }
    say(node) {
      this.live.textContent = this.lines(node).join("; ");
    }
    tell(node, x, y) {
      this.tip.replaceChildren(...this.lines(node).map((line) => make("div", "", line)));
      this.tip.hidden = false;
      const { width, height } = this.tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
      this.tip.style.left = Math.max(4, Math.min(x + 14, wide - width - 4)) + "px";
      this.tip.style.top = Math.max(4, y + 18 + height > innerHeight ? y - height - 10 : y + 18) + "px";
    }
    hide() {
      this.tip.hidden = true;
    }

    // --- drawing -------------------------------------------------------------------------------------------------
    draw() {
      if (!this.view) return;
      const wide = this.box.clientWidth, high = this.printing || Math.min(this.box.clientHeight, this.rows * ROW + 2), scale = devicePixelRatio || 1;
      if (!wide || !high) return;
      const canvas = this.canvas, c = canvas.getContext("2d");
      if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) {
        canvas.width = Math.round(wide * scale);
        canvas.height = Math.round(high * scale);
        canvas.style.width = wide + "px";
        canvas.style.height = high + "px";
      }
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.fillStyle = this.look.page;
      c.fillRect(0, 0, wide, high);
      c.font = FONT;
      c.textBaseline = "middle";
      c.direction = "ltr";
      this.advance = this.advance || c.measureText("MMMMMMMMMM").width / 10;
      const total = this.total[this.side], start = this.start[this.side], { from, width } = this.view, top = this.printing ? 0 : this.box.scrollTop;
      const last = new Int32Array(this.rows).fill(-1);
      this.drawn = 0;
      for (let i = 0; i < total.length; i++) {
        const inside = this.inside[i], depth = this.depth[i];
        if (!inside || depth >= this.rows || !(total[i] > 0)) continue;
        const row = this.icicle ? depth : this.rows - 1 - depth, y = row * ROW - top + 1;
        if (y + ROW < 0 || y > high) continue;
        const x = inside === 2 ? 0 : ((start[i] - from) / width) * wide, w = inside === 2 ? wide : (total[i] / width) * wide;
        if (w < LEAST) continue;
        if (w < 1) { // several in one pixel are drawn once
          if (last[depth] === Math.floor(x)) continue;
          last[depth] = Math.floor(x);
        }
        this.bar(c, i, Math.max(x, 0), y, Math.min(w, wide - Math.max(x, 0)));
        this.drawn++;
      }
      for (const [node, colour, line] of [[this.hover, this.look.mark, 1], [this.chosen, this.look.mark, 2]]) {
        if (node < 0 || !this.visible(node)) continue;
        if (node === this.chosen && node === this.zoomed && document.activeElement !== canvas) continue;
        const row = this.icicle ? this.depth[node] : this.rows - 1 - this.depth[node];
        c.strokeStyle = colour;
        c.lineWidth = line;
        c.strokeRect(Math.max(this.left(node), 0) + line / 2, row * ROW - top + 1 + line / 2, Math.max(Math.min(this.wide(node), wide) - line - 0.5, 1), ROW - 1 - line);
      }
    }
    bar(c, node, x, y, w) {
      const frame = this.tree.frame[node], hit = this.matched && this.matched[frame], dim = this.matched && !hit;
      const gap = w > 3 ? 0.75 : 0, look = this.lookOf(node), high = ROW - 1;
      c.globalAlpha = dim ? 1 : this.differs ? 1 : 1 - 0.14 * this.shades[frame];
      c.fillStyle = dim ? this.look.dim : this.look.fill[look];
      c.fillRect(x, y, Math.max(w - gap, 0.6), high);
      c.globalAlpha = 1;
      if (hit) {
        c.fillStyle = this.look.found;
        c.fillRect(x, y + high - 3, Math.max(w - gap, 1), 3);
        if (w > 6) c.fillRect(x, y, 3, high);
      }
      if (w < TEXT) return;
      const mark = this.differs && look.startsWith("up") ? "▲ " : this.differs && look.startsWith("down") ? "▼ " : "";
      const text = this.fit(c, mark + (this.tree.short[frame] || this.label(node)), w - gap - 2 * PAD);
      if (!text) return;
      c.fillStyle = dim ? this.look.quiet : this.look.ink;
      c.fillText(text, x + PAD, y + high / 2 + 0.5);
    }
    fit(c, text, room) {
      if (/^[ -~]*$/.test(text)) {
        const most = Math.floor(room / this.advance);
        return text.length <= most ? text : most < 3 ? "" : text.slice(0, most - 1) + "…";
      }
      if (text.length <= 300 && c.measureText(text).width <= room) return text;
      const letters = [...text.slice(0, 300)];
      let low = 0, high = letters.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (c.measureText(letters.slice(0, middle).join("") + "…").width <= room) low = middle;
        else high = middle - 1;
      }
      return low < 2 ? "" : letters.slice(0, low).join("") + "…";
    }
    drawLegend() {
      const { words, tree } = this, rows = [];
      if (this.differs) {
        const steps = this.most >= LEAST_SCALE ? STEPS : 0; // nothing is coloured where nothing is proven
        for (let i = steps; i > 0; i--) rows.push(["down" + i, "▼", -i]);
        rows.push(["same", "=", 0]);
        for (let i = 1; i <= steps; i++) rows.push(["up" + i, "▲", i]);
        rows.push(["unproven", "?", 0]);
      } else {
        const shown = new Set(tree.kinds);
        for (const kind in LETTERS) if (kind !== "root" && shown.has(kind)) rows.push([kind, LETTERS[kind], 0]);
      }
      this.legend.replaceChildren(...rows.map(([look, letter, step]) => {
        const item = make("li"), swatch = make("canvas", "swatch"), scale = devicePixelRatio || 1;
        swatch.width = 24 * scale;
        swatch.height = 16 * scale;
        swatch.setAttribute("aria-hidden", "true");
        const c = swatch.getContext("2d");
        c.scale(scale, scale);
        c.fillStyle = this.look.fill[look];
        c.fillRect(0, 0, 24, 16);
        c.fillStyle = this.look.ink;
        c.font = FONT;
        c.textAlign = "center";
        c.textBaseline = "middle";
        c.fillText(letter, 12, 9);
        const text = look === "same" ? words.same : look === "unproven" ? words.not_proven : step ? this.stepText(step) : words["kind_" + look];
        item.append(swatch, make("span", "", text));
        return item;
      }));
      if (this.differs) this.legend.append(make("li", "flame-note", words.change_is));
    }
    stepText(step) {
      const edge = (n) => points((n / STEPS) * this.most);
      if (step > 1 || step < -1) return edge(step - Math.sign(step)) + " … " + edge(step);
      return (step > 0 ? "≤ " : "≥ ") + edge(step);
    }
    print(on) { // paper does not scroll
      this.printing = on ? Math.min(this.rows * ROW + 2, MOST_HEIGHT) : 0;
      this.container.classList.toggle("printing", on);
      if (on) {
        this.hide();
        this.before = document.documentElement.dataset.theme;
        document.documentElement.dataset.theme = "light";
        this.theme(true);
      } else if (this.before !== undefined) document.documentElement.dataset.theme = this.before;
      else delete document.documentElement.dataset.theme;
      if (!on) this.theme(true);
    }
  }
  const { read, unpack, ranking } = FlameParts;
  return Object.assign(Flame, { read, unpack, totals, ranking, amount, percent, points, sign });
})();
