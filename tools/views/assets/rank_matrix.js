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
      this.share = unpack(this.share, 2); // thousandths
      this.values = Object.fromEntries(Object.entries(this.values).map(([key, text]) => [key, unpack(text, 4)]));
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
      const box = this.svg.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - this.x) / this.cell[0]);
      const row = Math.floor((event.clientY - box.top - this.y) / this.cell[1]);
      if (row < 0 || column < 0 || row >= this.rows.length || column >= this.columns.length) this.leave();
      else this.show(row, column, event.clientX, event.clientY);
    }
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
      const box = this.svg.getBoundingClientRect();
      this.show(row, column, box.left + this.x + (column + 1) * this.cell[0], box.top + this.y + (row + 1) * this.cell[1]);
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
    lines(row, column) { return this.values.own ? this.ofStep(row, column) : this.ofPair(row, column); }
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
      if (row === column) return [words.nobody];
      return [sign(words.one_waits, name(this.rows[row]), name(this.rows[column]), ms(this.values.waits[row * this.columns.length + column]))];
    }
  }

  function setTheme(dark) { root.dataset.theme = dark ? "dark" : "light"; }
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  for (const [key, source] of Object.entries(data.figures)) new Figure(document.getElementById(key), source);
})();
