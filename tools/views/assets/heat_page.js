// Chooses spans of a heat map by mouse and keyboard, and draws what was sampled in them. Every text is set as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent), words = data.words, root = document.documentElement;
  const byId = (id) => document.getElementById(id), svg = byId("map"), tip = byId("tip"), live = byId("live");
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", () => value), text);
  const setTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; };
  if (!root.dataset.theme) setTheme(matchMedia("(prefers-color-scheme: dark)").matches); // else set by an embedding page
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));

  function unpack(text, size) { // little-endian: 1 byte each, 4 (whole numbers), 8 (fractions)
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    if (size === 1) return bytes;
    const read = size === 8 ? (i) => view.getFloat64(8 * i, true) : size === 4 ? (i) => view.getInt32(4 * i, true) : (i) => view.getFloat32(4 * i, true);
    return Float64Array.from({ length: bytes.length / (size === 8 ? 8 : 4) }, (_, i) => read(i));
  }
  const map = data.map, rows = map.rows, columns = unpack(map.columns, 8), levels = unpack(map.levels, 1), count = levels.length;
  const bands = map.bands.map(([starts, ends]) => [unpack(starts, 8), unpack(ends, 8)]);
  const UNKNOWN = 255, FEW = 10, SURE = 4; // see `proven`

  // --- times and cells ---------------------------------------------------------------------------------------
  const from = (cell) => columns[Math.floor(cell / rows)] + (cell % rows) * map.cell_ns;
  const time = (ns) => (ns / 1e9).toFixed(map.cell_ns >= 1e9 ? 0 : map.cell_ns >= 1e7 ? 2 : map.cell_ns >= 1e6 ? 3 : 5) + " s";
  const percent = (share) => (100 * share).toFixed(share >= 0.0995 || share === 0 ? 0 : share >= 0.00095 ? 1 : 2) + " %";
  function cellAt(ns) { // the cell of an instant; where time was cut out, the next one
    let low = 0, high = columns.length;
    while (low < high) { const middle = (low + high) >> 1; if (columns[middle] <= ns) low = middle + 1; else high = middle; }
    if (low === 0) return 0;
    const row = Math.floor((ns - columns[low - 1]) / map.cell_ns);
    return Math.min(row < rows ? (low - 1) * rows + row : low * rows, count - 1);
  }
  function busy(ranges) { // mean of what was observed
    let sum = 0, seen = 0;
    for (const [a, b] of ranges) for (let cell = a; cell <= b; cell++) if (levels[cell] !== UNKNOWN) { sum += levels[cell]; seen++; }
    return seen ? (sum / seen / (UNKNOWN - 1)) * map.scale : NaN;
  }

  // --- what was sampled in them --------------------------------------------------------------------------------
  const stacks = data.stacks, together = stacks ? stacks.together : 1;
  let flame = null, difference = null, entries = null, all = null, everything = 0;
  if (stacks) {
    entries = { cell: unpack(stacks.cell, 4), node: unpack(stacks.node, 4), weight: unpack(stacks.weight, 0) };
    const tree = Flame.read(stacks.tree), options = { unit: stacks.unit, period: stacks.period };
    all = new Float64Array(tree.parent.length);
    for (let i = 0; i < entries.cell.length; i++) all[entries.node[i]] += entries.weight[i];
    everything = all.reduce((a, b) => a + b, 0);
    tree.own = [all];
    tree.proven = null;
    flame = new Flame(byId("flame"), tree, data.flame_words, options);
  }
  function first(cell) { // entry
    let low = 0, high = entries.cell.length;
    while (low < high) { const middle = (low + high) >> 1; if (entries.cell[middle] < cell) low = middle + 1; else high = middle; }
    return low;
  }
  function weights(ranges) {
    const own = new Float64Array(all.length);
    for (const [a, b] of ranges) for (let i = first(a); i < entries.cell.length && entries.cell[i] <= b; i++) own[entries.node[i]] += entries.weight[i];
    return own;
  }
  // Two shares differ when they are further apart than 4 standard errors of samples taken one by one: of a thousand frames
  // without a difference one in sixteen pictures shows one. With fewer than ten samples none is shown.
  function proven(was, is, restWeight, chosenWeight) {
    const rest = restWeight / stacks.per_sample, chosen = chosenWeight / stacks.per_sample;
    if (rest < FEW || chosen < FEW) return false;
    const share = (was * rest + is * chosen) / (rest + chosen);
    return Math.abs(is - was) > SURE * Math.sqrt(share * (1 - share) * (1 / rest + 1 / chosen));
  }

  // --- choosing ------------------------------------------------------------------------------------------------
  const shape = (look) => { const one = document.createElementNS("http://www.w3.org/2000/svg", "path"); one.setAttribute("class", look); svg.append(one); return one; };
  const picked = [shape("picked-halo"), shape("picked")], marked = [shape("cursor-halo"), shape("cursor")];
  const [wide, high] = map.cell;
  svg.classList.toggle("narrow", wide < 5);
  let cursor = -1, anchor = -1, ranges = [], band = -1;

  function outline(list) { // the cells from a to b, column by column; whole columns as one
    const box = (column, across, row, down) => `M${map.x + column * wide} ${map.y + row * high}h${across * wide}v${down * high}h${-across * wide}z`;
    let path = "";
    for (const [a, b] of list) {
      let [start, end] = [Math.floor(a / rows), Math.floor(b / rows)];
      const [top, bottom] = [a % rows, b % rows];
      if (start === end) { path += box(start, 1, top, bottom - top + 1); continue; }
      if (top > 0) path += box(start++, 1, top, rows - top);
      let last = "";
      if (bottom < rows - 1) last = box(end--, 1, 0, bottom + 1);
      if (end >= start) path += box(start, end - start + 1, 0, rows);
      path += last;
    }
    return path;
  }
  function whole(a, b) { // what counts as one is chosen as one
    const low = Math.min(a, b), top = Math.max(a, b);
    return [low - (low % together), Math.min(top - (top % together) + together - 1, count - 1)];
  }
  function choose(list, which = -1) {
    ranges = list;
    band = which;
    for (const one of picked) one.setAttribute("d", outline(list));
    for (const one of document.querySelectorAll("[data-band]")) one.setAttribute("aria-pressed", String(Number(one.dataset.band) === which));
    byId("clear").disabled = !list.length;
    tell();
  }
  function tell() {
    const title = byId("flame-title"), any = ranges.length > 0;
    title.textContent = any ? title.dataset.chosen : title.dataset.whole;
    let text = words.chosen_none;
    let own = null, sum = 0;
    if (any && stacks) { own = weights(ranges); sum = own.reduce((a, b) => a + b, 0); }
    const share = percent(everything > 0 ? sum / everything : 0);
    if (band >= 0) text = sign(words.chosen_bands, ranges.length, share);
    else if (any) {
      const mean = busy(ranges);
      text = sign(words.chosen_is, time(from(ranges[0][0])), time(from(ranges[0][1]) + map.cell_ns), share, Number.isNaN(mean) ? words.unseen_is : percent(mean));
    }
    if (any && sum / (stacks ? stacks.per_sample : 1) < FEW) text += " " + words.samples_few;
    byId("chosen").textContent = text;
    if (!stacks) return;
    flame.show(any ? own : all);
    const comparable = any && sum > 0 && everything - sum > 1e-9 * everything;
    byId("beside").hidden = !comparable;
    if (!comparable) return;
    const rest = all.map((value, i) => Math.max(value - own[i], 0));
    if (difference) difference.show([rest, own]);
    else difference = new Flame(byId("difference"), { ...flame.tree, own: [rest, own], proven: null }, data.difference_words, { unit: stacks.unit, period: stacks.period, proven });
  }
  let asked = 0;
  function extend(to, settled) { // drawn at once, counted when there is time
    choose.pending = [whole(anchor, to)];
    for (const one of picked) one.setAttribute("d", outline(choose.pending));
    cancelAnimationFrame(asked);
    if (settled) choose(choose.pending);
    else asked = requestAnimationFrame(() => choose(choose.pending));
  }

  // --- pointing ------------------------------------------------------------------------------------------------
  function under(event, clamp) {
    const box = svg.getBoundingClientRect(), column = Math.floor((event.clientX - box.left - map.x) / wide), row = Math.floor((event.clientY - box.top - map.y) / high);
    const inside = column >= 0 && row >= 0 && column < columns.length && row < rows;
    if (!inside && !clamp) return -1;
    return Math.min(Math.max(column, 0), columns.length - 1) * rows + Math.min(Math.max(row, 0), rows - 1);
  }
  function lines(cell) {
    const start = from(cell), level = levels[cell];
    return [sign(words.at_cell, time(start), time(start + map.cell_ns)), level === UNKNOWN ? words.unseen_is : sign(words.busy_is, percent((level / (UNKNOWN - 1)) * map.scale))];
  }
  function show(cell, x, y) {
    cursor = cell;
    for (const one of marked) one.setAttribute("d", outline([[cell, cell]]));
    tip.replaceChildren(...lines(cell).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(Math.min(x + 14, innerWidth - box.width - 8), 4) + "px";
    tip.style.top = Math.max(Math.min(y + 16, innerHeight - box.height - 8), 4) + "px";
  }
  function leave() {
    for (const one of marked) one.setAttribute("d", "");
    tip.hidden = true;
  }
  let dragging = false;
  svg.addEventListener("pointerdown", (event) => {
    const cell = under(event);
    if (event.button !== 0 || cell < 0) return;
    if (event.pointerType !== "touch") { dragging = true; svg.setPointerCapture(event.pointerId); event.preventDefault(); }
    svg.focus({ preventScroll: true });
    if (!(event.shiftKey && anchor >= 0)) anchor = cell;
    extend(cell, !dragging);
  });
  svg.addEventListener("pointermove", (event) => {
    const cell = under(event, dragging);
    if (cell < 0) return leave();
    show(cell, event.clientX, event.clientY);
    if (dragging) extend(cell, false);
  });
  const release = (event) => {
    if (!dragging) return;
    dragging = false;
    extend(under(event, true), true);
  };
  svg.addEventListener("pointerup", release);
  svg.addEventListener("pointercancel", release);
  svg.addEventListener("pointerleave", () => { if (!dragging) leave(); });
  svg.addEventListener("blur", leave);
  function clear() { anchor = -1; choose([]); }
  byId("clear").addEventListener("click", clear);
  for (const one of document.querySelectorAll("[data-band]")) one.addEventListener("click", () => {
    const at = Number(one.dataset.band);
    if (band === at) return clear();
    anchor = -1;
    const list = [];
    for (let i = 0; i < bands[at][0].length; i++) {
      const [a, b] = whole(cellAt(bands[at][0][i]), cellAt(bands[at][1][i] - 1)), last = list[list.length - 1];
      if (last && a <= last[1] + 1) last[1] = Math.max(last[1], b);
      else list.push([a, b]);
    }
    choose(list, at);
  });
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { leave(); return clear(); }
    const by = { ArrowDown: 1, ArrowUp: -1, ArrowRight: rows, ArrowLeft: -rows, PageDown: 10, PageUp: -10 }[event.key];
    let to = cursor < 0 ? 0 : cursor;
    if (by !== undefined) to = cursor < 0 ? 0 : Math.min(Math.max(cursor + by, 0), count - 1);
    else if (event.key === "Home") to -= to % rows;
    else if (event.key === "End") to += rows - 1 - (to % rows);
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === " ") { anchor = to; extend(to, true); }
    else if (event.shiftKey) { if (anchor < 0) anchor = Math.max(cursor, 0); extend(to, true); }
    const box = svg.getBoundingClientRect(), x = box.left + map.x + Math.floor(to / rows) * wide, y = box.top + map.y + (to % rows) * high;
    show(to, x + wide, y + high);
    const scroll = svg.parentElement, left = x - scroll.getBoundingClientRect().left;
    if (left < 60 || left + wide > scroll.clientWidth - 10) { scroll.scrollLeft += left - scroll.clientWidth / 2; tip.hidden = true; }
    if (!event.shiftKey || by === undefined) live.textContent = lines(to).join("; ");
  });
  if (svg.parentElement) svg.parentElement.addEventListener("scroll", leave);
})();
