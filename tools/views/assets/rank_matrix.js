// Shows the figures of the cell under the mouse or the keyboard's cursor. Every text is set as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const words = data.words, root = document.documentElement;
  const tip = document.getElementById("tip"), live = document.getElementById("live");
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", () => value), text);

  function unpack(text, size) { // little-endian: 16-bit integers or 32-bit floats
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    const value = (_, i) => (size === 2 ? view.getInt16(2 * i, true) : view.getFloat32(4 * i, true));
    return (size === 2 ? Int16Array : Float32Array).from({ length: bytes.length / size }, value);
  }
  const ms = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3));
  const name = ([first, last]) => (first === last ? String(first) : first + "-" + last);

  class Figure {
    constructor(svg, source) {
      Object.assign(this, source, { svg });
      this.share = unpack(this.share || "", 2); // thousandths
      this.values = Object.fromEntries(Object.entries(this.values || {}).map(([key, text]) => [key, unpack(text, 4)]));
      this.parts = (this.parts || []).map((text) => unpack(text, 4));
      if (this.kind === "timeline") { // a hundred places for the keyboard; the mouse is exact
        this.columns = Array.from({ length: 100 }, (_, i) => i);
        this.cell = [this.cell[0] / 100, this.cell[1]];
      }
      this.row = this.column = -1;
      this.cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      this.cursor.setAttribute("class", "cursor");
      this.cursor.setAttribute("visibility", "hidden");
      svg.append(this.cursor);
      svg.addEventListener("mousemove", (event) => this.under(event));
      svg.addEventListener("mouseleave", () => this.leave());
      svg.addEventListener("blur", () => this.leave());
      svg.addEventListener("keydown", (event) => this.key(event));
    }
    under(event) {
      const box = this.svg.getBoundingClientRect(), scale = this.scale(box);
      const x = ((event.clientX - box.left) / scale - this.x) / this.cell[0];
      const column = Math.floor(x), row = Math.floor(((event.clientY - box.top) / scale - this.y) / this.cell[1]);
      this.at = x / this.columns.length;
      if (row < 0 || column < 0 || row >= this.rows.length || column >= this.columns.length) this.leave();
      else this.show(row, column, event.clientX, event.clientY);
    }
    scale(box) { return box.width / this.svg.viewBox.baseVal.width || 1; }
    key(event) {
      const by = event.shiftKey ? 10 : 1;
      const move = { ArrowLeft: [0, -by], ArrowRight: [0, by], ArrowUp: [-by, 0], ArrowDown: [by, 0] }[event.key];
      if (event.key === "Escape") return this.leave();
      let to;
      if (move) to = this.row < 0 ? [0, 0] : [this.row + move[0], this.column + move[1]];
      else if (event.key === "Home") to = [Math.max(this.row, 0), 0];
      else if (event.key === "End") to = [Math.max(this.row, 0), this.columns.length - 1];
      else return;
      event.preventDefault();
      const row = Math.min(Math.max(to[0], 0), this.rows.length - 1);
      const column = Math.min(Math.max(to[1], 0), this.columns.length - 1);
      const box = this.svg.getBoundingClientRect(), scale = this.scale(box);
      this.at = (column + 0.5) / this.columns.length;
      const x = box.left + (this.x + (column + 1) * this.cell[0]) * scale, y = box.top + (this.y + (row + 1) * this.cell[1]) * scale;
      this.show(row, column, x, y);
      live.textContent = this.lines(row, column).join("; ");
    }
    show(row, column, x, y) {
      [this.row, this.column] = [row, column];
      const [wide, high] = this.cell;
      const place = { x: this.x + column * wide - 1, y: this.y + row * high - 1, width: wide + 2, height: high + 2 };
      for (const key in place) this.cursor.setAttribute(key, place[key]);
      this.cursor.setAttribute("visibility", "visible");
      tip.replaceChildren(...this.lines(row, column).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(Math.min(x + 14, innerWidth - box.width - 8), 4) + "px";
      tip.style.top = Math.max(Math.min(y + 14, innerHeight - box.height - 8), 4) + "px";
    }
    leave() {
      this.cursor.setAttribute("visibility", "hidden");
      tip.hidden = true;
    }
    lines(row, column) {
      const kinds = { steps: "ofStep", waits: "ofPair", parts: "ofParts", timeline: "ofInstant", places: "ofPlace" };
      return this[kinds[this.kind]](row, column);
    }
    ofParts(row) {
      const whole = this.parts.reduce((sum, values) => sum + values[row], 0);
      const line = (values, i) => sign(words.part_of, this.names[i], ms(values[row]), ((100 * values[row]) / (whole || 1)).toFixed(1));
      return [sign(words.at_rank, name(this.rows[row])), ...this.parts.map(line).filter((_, i) => this.parts[i][row] > 0)];
    }
    ofInstant(row) {
      const v = this.values, at = this.at * this.ms, out = [sign(words.at_instant, name(this.rows[row]), ms(at))];
      const hits = [];
      for (let i = 0; i < v.row.length; i++) if (v.row[i] === row && v.start[i] <= at && at < v.start[i] + v.took[i]) hits.push(i);
      for (const i of hits.slice(0, 4)) {
        out.push(sign(words.lasts, this.labels[v.label[i]] + (v.count[i] > 1 ? " " + sign(words.like_ones, v.count[i]) : ""), ms(v.took[i])));
        if (v.wait[i] > 0) out.push(sign(words.waits_in_it, ms(v.wait[i])));
      }
      return hits.length ? out : [...out, words.own_work];
    }
    ofPlace(row, column) {
      const cell = this.cells[row * this.columns.length + column];
      if (!cell) return [sign(words.at_place, name(this.rows[row]), this.columns[column]), "-"];
      return [sign(words.at_place, name(this.rows[row]), cell[1]), ...(cell[2] ? [cell[2]] : []), this.states[cell[0]]];
    }
    ofStep(row, column) {
      const at = row * this.columns.length + column;
      const value = (key) => (this.values[key] ? this.values[key][at] : NaN);
      const out = [sign(words.at_cell, name(this.rows[row]), this.columns[column])];
      if (Number.isNaN(value("own"))) return [...out, words.not_known];
      out.push(sign(words.own_of, ms(value("own"))));
      if (this.share[at] !== -32768) {
        const share = (this.share[at] >= 0 ? "+" : "-") + (Math.abs(this.share[at]) / 10).toFixed(1), peers = value("beside");
        out.push(Number.isNaN(peers) ? sign(words.beside_share, share) : sign(words.beside, ms(peers), share));
      }
      if (!Number.isNaN(value("wait") + value("step"))) out.push(sign(words.waited_of, ms(value("wait")), ms(value("step"))));
      if (!Number.isNaN(value("compute") + value("gap"))) out.push(sign(words.parts_of, ms(value("compute")), ms(value("gap"))));
      return out;
    }
    ofPair(row, column) {
      if (row === column && this.rows[row][0] === this.rows[row][1]) return [words.nobody];
      return [sign(words.one_waits, name(this.rows[row]), name(this.rows[column]), ms(this.values.waits[row * this.columns.length + column]))];
    }
  }

  function setTheme(dark) { root.dataset.theme = dark ? "dark" : "light"; }
  if (!root.dataset.theme) setTheme(matchMedia("(prefers-color-scheme: dark)").matches); // else set by an embedding page
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  for (const [key, source] of Object.entries(data.figures)) new Figure(document.getElementById(key), source);
})();
