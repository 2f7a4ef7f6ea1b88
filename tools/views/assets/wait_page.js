// Shows the figures of the cell under the mouse or the keyboard's cursor. Every text is set as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const words = data.words, root = document.documentElement;
  const tip = document.getElementById("tip"), live = document.getElementById("live");
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", () => value), text);
  const floats = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
  };
  const moment = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

  class Figure {
    constructor(svg, source) {
      Object.assign(this, source, { svg, rate: floats(source.rate), row: -1, at: -1 });
      this.boxes = ["cursor-halo", "cursor"].map((name) => {
        const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        made.setAttribute("class", name);
        made.setAttribute("visibility", "hidden");
        svg.append(made);
        return made;
      });
      svg.addEventListener("mousemove", (event) => this.under(event));
      svg.addEventListener("mouseleave", () => this.leave());
      svg.addEventListener("blur", () => this.leave());
      svg.addEventListener("keydown", (event) => this.key(event));
    }
    scale(box) { return box.width / this.svg.viewBox.baseVal.width || 1; }
    under(event) {
      const box = this.svg.getBoundingClientRect(), scale = this.scale(box);
      const at = Math.floor(((event.clientX - box.left) / scale - this.x) / this.cell[0]);
      const row = Math.floor(((event.clientY - box.top) / scale - this.y) / this.cell[1]);
      if (row < 0 || at < 0 || row >= this.rows.length || at >= this.columns) this.leave();
      else this.show(row, at, event.clientX, event.clientY);
    }
    key(event) {
      const by = event.shiftKey ? 10 : 1;
      const move = { ArrowLeft: [0, -by], ArrowRight: [0, by], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (event.key === "Escape") return this.leave();
      if (!move) return;
      event.preventDefault();
      const row = Math.min(Math.max(this.row < 0 ? 0 : this.row + move[0], 0), this.rows.length - 1);
      const at = Math.min(Math.max(this.row < 0 ? 0 : this.at + move[1], 0), this.columns - 1);
      const box = this.svg.getBoundingClientRect(), scale = this.scale(box);
      const x = box.left + (this.x + (at + 1) * this.cell[0]) * scale, y = box.top + (this.y + (row + 1) * this.cell[1]) * scale;
      this.show(row, at, x, y);
      live.textContent = this.lines(row, at).join("; ");
    }
    show(row, at, x, y) {
      [this.row, this.at] = [row, at];
      const [wide, high] = this.cell;
      const place = { x: this.x + at * wide - 1, y: this.y + row * high, width: wide + 2, height: high };
      for (const one of this.boxes) {
        for (const key in place) one.setAttribute(key, place[key]);
        one.setAttribute("visibility", "visible");
      }
      tip.replaceChildren(...this.lines(row, at).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(Math.min(x + 14, innerWidth - box.width - 8), 4) + "px";
      tip.style.top = Math.max(Math.min(y + 14, innerHeight - box.height - 8), 4) + "px";
    }
    leave() {
      for (const one of this.boxes) one.setAttribute("visibility", "hidden");
      tip.hidden = true;
      this.row = this.at = -1;
    }
    lines(row, at) {
      const rate = this.rate[row * this.columns + at], start = this.start + at * this.column;
      const value = Number.isNaN(rate) ? words.not_recorded : sign(words.rate, rate >= 10 ? rate.toFixed(1) : rate.toPrecision(3));
      return [value, sign(words.at_cell, moment(start), moment(start + this.column)), this.rows[row]];
    }
  }

  function setTheme(dark) { root.dataset.theme = dark ? "dark" : "light"; }
  if (!root.dataset.theme) setTheme(matchMedia("(prefers-color-scheme: dark)").matches); // else set by an embedding page
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  for (const [key, source] of Object.entries(data.maps)) new Figure(document.getElementById(key), source);
})();
