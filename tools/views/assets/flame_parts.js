// What a flame graph is made of, apart from the graph: trees and their weights, figures as text, colours and patterns.
"use strict";
const FlameParts = (() => {
  const STEPS = 4; // grades of a change in each direction
  const LEAST_SCALE = 0.005; // points; less than that is shown as 0.00
  const FONT = '12px "DejaVu Sans Mono", ui-monospace, Menlo, Consolas, "Noto Sans Mono CJK SC", monospace';
  const LETTERS = {
    python: "P", native: "N", kernel: "K", operator: "O", annotation: "A", launch: "L", device: "D", idle: "I", thread: "T",
    other: "?", root: "*", rest: "…",
  };
  const PATTERNS = { kernel: "stripes", operator: "bars", device: "cross", idle: "dots", rest: "stripes" };
  const LOOKS = [...Object.keys(LETTERS), "same", "unproven"];
  for (let i = 1; i <= STEPS; i++) LOOKS.push("up" + i, "down" + i);
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", () => value), text);
  const make = (tag, look, text) => {
    const one = document.createElement(tag);
    if (look) one.className = look;
    if (text !== undefined) one.textContent = text;
    return one;
  };

  function unpack(text, Type) { // little-endian bytes in base64
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    if (Type === Uint8Array) return bytes;
    const view = new DataView(bytes.buffer), size = Type.BYTES_PER_ELEMENT;
    const value = Type === Float64Array ? (i) => view.getFloat64(i, true) : Type === Float32Array ? (i) => view.getFloat32(i, true) : (i) => view.getInt32(i, true);
    return Type.from({ length: bytes.length / size }, (_, i) => value(i * size));
  }
  function read(json) {
    return {
      labels: json.labels, short: json.short || {}, kinds: json.kinds, codes: json.codes,
      parent: unpack(json.parent, Int32Array), frame: unpack(json.frame, Int32Array),
      own: json.own.map((side) => unpack(side, Float64Array)), proven: json.proven ? unpack(json.proven, Uint8Array) : null,
    };
  }
  function totals(tree, own) {
    const total = Float64Array.from(own), parent = tree.parent;
    for (let i = total.length - 1; i > 0; i--) total[parent[i]] += total[i];
    return total;
  }
  function ranking(tree, own) { // what each frame weighs, heaviest itself first; a recursion counts once
    const total = totals(tree, own), { parent, frame } = tree, rows = new Map();
    for (let i = 1; i < own.length; i++) {
      if (!(total[i] > 0)) continue;
      let row = rows.get(frame[i]);
      if (!row) rows.set(frame[i], (row = { frame: frame[i], self: 0, total: 0 }));
      row.self += own[i];
      let above = parent[i];
      while (above > 0 && frame[above] !== frame[i]) above = parent[above];
      if (above <= 0) row.total += total[i];
    }
    return [...rows.values()].sort((a, b) => b.self - a.self || b.total - a.total || a.frame - b.frame);
  }

  // --- figures ---------------------------------------------------------------------------------------------
  const figure = (value, lang) => value.toLocaleString(lang, { maximumSignificantDigits: value < 1000 && value % 1 ? 3 : 15, maximumFractionDigits: 2 });
  function scaled(value, steps) {
    const [name, size] = steps.find(([, least]) => Math.abs(value) >= least) || steps[steps.length - 1];
    const part = value / size;
    return part.toFixed(part >= 100 || part === Math.round(part) ? 0 : part >= 10 ? 1 : 2) + " " + name;
  }
  function amount(value, unit, words, lang) {
    if (unit === "ns") return scaled(value, [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]);
    if (unit === "bytes") return scaled(value, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
    return sign(unit !== "samples" ? "{} " + unit : value === 1 ? words.unit_sample : words.unit_samples, figure(value, lang));
  }
  const percent = (share) => {
    const value = 100 * share;
    return (value >= 99.995 || value === 0 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value >= 0.01 ? value.toFixed(2) : "< 0.01") + " %";
  };
  const points = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + (Math.abs(value) >= 9.995 ? Math.abs(value).toFixed(1) : Math.abs(value).toFixed(2));

  // --- looks -------------------------------------------------------------------------------------------------
  function pattern(colour, ink, kind, scale) {
    const tile = document.createElement("canvas"), size = 8;
    tile.width = tile.height = size * scale;
    const c = tile.getContext("2d");
    c.scale(scale, scale);
    c.fillStyle = colour;
    c.fillRect(0, 0, size, size);
    c.strokeStyle = c.fillStyle = ink;
    c.globalAlpha = 0.13;
    c.lineWidth = 1.2;
    const line = (...p) => { c.beginPath(); c.moveTo(p[0], p[1]); c.lineTo(p[2], p[3]); c.stroke(); };
    if (kind === "stripes" || kind === "cross") { line(-2, 2, 2, -2); line(-2, 10, 10, -2); line(6, 10, 10, 6); }
    if (kind === "cross") { line(-2, 6, 2, 10); line(-2, -2, 10, 10); line(6, -2, 10, 2); }
    if (kind === "bars") line(4, 0, 4, size);
    if (kind === "dots") { c.fillRect(1, 1, 2, 2); c.fillRect(5, 5, 2, 2); }
    const found = c.createPattern(tile, "repeat");
    found.setTransform(new DOMMatrix().scale(1 / scale));
    return found;
  }
  function looks(scale) {
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue("--" + name).trim();
    const theme = { fill: {} };
    for (const name of ["page", "ink", "quiet", "line", "dim", "found", "mark", "edge"]) theme[name] = colour(name);
    for (const look of LOOKS) theme.fill[look] = PATTERNS[look] ? pattern(colour(look), theme.ink, PATTERNS[look], scale) : colour(look);
    return theme;
  }
  function shade(text) { // 0 to 2, the same for the same name everywhere
    let hash = 7;
    for (let i = 0; i < Math.min(text.length, 40); i++) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
    return hash % 3;
  }

  return { STEPS, LEAST_SCALE, FONT, LETTERS, sign, make, unpack, read, totals, ranking, figure, amount, percent, points, looks, shade };
})();
