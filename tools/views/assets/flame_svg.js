// Search, zoom and keys in a flame graph that a browser opened by itself. The picture is complete without.
"use strict";
(() => {
  const svg = document.documentElement, NS = svg.namespaceURI, words = JSON.parse(svg.dataset.words);
  const WIDTH = 1200, MARGIN = 10, INNER = WIDTH - 2 * MARGIN, ROW = 17, ADVANCE = 0.602 * 12, LEAST = 0.3;
  const make = (tag, attributes, where) => {
    const one = document.createElementNS(NS, tag);
    for (const name in attributes) one.setAttribute(name, attributes[name]);
    where.append(one);
    return one;
  };
  const sign = (text, ...values) => values.reduce((out, value) => out.replace("{}", () => value), text);
  const wide = (letter) => (/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/u.test(letter) || letter.codePointAt(0) > 0x1f2ff ? 2 : 1);
  function cut(text, room) {
    if (room < 3) return "";
    let used = 0, out = "";
    for (const letter of text) {
      used += wide(letter);
      if (used > room) return out.slice(0, -1) + "…";
      out += letter;
    }
    return out;
  }
  const graphs = [...svg.querySelectorAll(".graph")].map((group) => {
    const top = Number(group.dataset.y), frames = [...group.children].map((one) => {
      const rect = one.querySelector("rect"), text = one.querySelector("text");
      return {
        one, rect, text, x: (Number(rect.getAttribute("x")) - MARGIN) / INNER, w: Number(rect.getAttribute("width")) / INNER,
        depth: Math.round((Number(rect.getAttribute("y")) - top) / ROW), name: one.querySelector("title").textContent.split("\n")[0],
        look: rect.getAttribute("class"), shown: true,
      };
    });
    return { group, top, frames, high: Number(group.dataset.h), zoomed: frames[0] };
  });
  if (!graphs.length || !graphs[0].frames.length) return;
  let icicle = true, chosen = null, past = [], pattern = "";

  function place(graph) {
    const z = graph.zoomed, edge = 1e-5, rows = graph.high / ROW;
    for (const frame of graph.frames) {
      const above = frame.depth < z.depth && frame.x <= z.x + edge && frame.x + frame.w >= z.x + z.w - edge;
      const within = frame.depth >= z.depth && frame.x >= z.x - edge && frame.x + frame.w <= z.x + z.w + edge;
      const x = above ? 0 : ((frame.x - z.x) / z.w) * INNER, w = above ? INNER : (frame.w / z.w) * INNER;
      frame.shown = (above || within) && w >= LEAST;
      frame.one.classList.toggle("gone", !frame.shown);
      if (!frame.shown) continue;
      const y = graph.top + (icicle ? frame.depth : rows - 1 - frame.depth) * ROW, left = MARGIN + Math.max(x, 0);
      frame.rect.setAttribute("x", left.toFixed(2));
      frame.rect.setAttribute("y", y);
      frame.rect.setAttribute("width", w.toFixed(2));
      const mark = frame.look.startsWith("up") ? "▲ " : frame.look.startsWith("down") ? "▼ " : "";
      const label = cut(mark + frame.name, Math.floor((w - 6) / ADVANCE));
      if (!label && !frame.text) continue;
      frame.text = frame.text || make("text", {}, frame.one);
      frame.text.setAttribute("x", (left + 3).toFixed(1));
      frame.text.setAttribute("y", y + 12);
      frame.text.textContent = label;
    }
  }
  function zoom(graph, frame, remember = true) {
    if (remember && frame !== graph.zoomed) past.push([graph, graph.zoomed]);
    graph.zoomed = frame;
    choose(graph, frame);
    place(graph);
  }
  function reset() {
    past = [];
    for (const graph of graphs) { graph.zoomed = graph.frames[0]; place(graph); }
  }
  function turn() {
    icicle = !icicle;
    graphs.forEach(place);
  }
  function choose(graph, frame) {
    if (chosen) chosen.frame.one.classList.remove("chosen");
    chosen = { graph, frame };
    frame.one.classList.add("chosen");
    svg.setAttribute("aria-label", frame.one.querySelector("title").textContent);
  }
  function seek(text) {
    pattern = text;
    let test = null, plain = "";
    if (text) try { const one = new RegExp(text, "iu"); test = (name) => one.test(name); } catch {
      const low = text.toLowerCase();
      test = (name) => name.toLowerCase().includes(low);
      plain = " " + words.plain;
    }
    let count = 0, share = 0;
    for (const graph of graphs) {
      graph.group.classList.toggle("searched", Boolean(test));
      let end = -1; // of the match furthest to the right, when walked from left to right, callers first
      for (const frame of [...graph.frames].sort((a, b) => a.x - b.x || a.depth - b.depth)) {
        const hit = Boolean(test) && !/^r(oot|est)$/.test(frame.look) && test(frame.name);
        frame.one.classList.toggle("hit", hit);
        if (!hit || graph !== graphs[0]) continue;
        count++;
        if (frame.x >= end - 1e-6) { share += frame.w; end = frame.x + frame.w; }
      }
    }
    found.textContent = !test ? "" : (count ? sign(words.matches, count, (100 * share).toFixed(share < 0.1 ? 2 : 1) + " %") : words.no_match) + plain;
  }

  // --- tools ---------------------------------------------------------------------------------------------------
  let right = WIDTH - MARGIN;
  function tool(text, act) {
    const width = [...text].reduce((sum, letter) => sum + wide(letter), 0) * ADVANCE + 16;
    right -= width;
    const one = make("g", { class: "tool", tabindex: 0, role: "button", "aria-label": text }, svg);
    make("rect", { x: right, y: 8, width, height: 22, rx: 4 }, one);
    make("text", { x: right + width / 2, y: 23 }, one).textContent = text;
    one.addEventListener("click", act);
    one.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); act(); } });
    right -= 8;
  }
  tool(words.reset, reset);
  tool(words.root_below, turn);
  const holder = make("foreignObject", { x: right - 190, y: 7, width: 190, height: 26 }, svg);
  const input = document.createElementNS("http://www.w3.org/1999/xhtml", "input");
  Object.assign(input, { type: "search", placeholder: words.search + " (/)", maxLength: 300 });
  input.setAttribute("aria-label", words.search);
  Object.assign(input.style, { width: "186px", font: "12px monospace", boxSizing: "border-box", height: "24px" });
  holder.append(input);
  const found = make("text", { class: "found", x: WIDTH - MARGIN, y: 46, "aria-live": "polite" }, svg);
  input.addEventListener("input", () => seek(input.value));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") { input.value = ""; seek(""); input.blur(); }
  });

  for (const graph of graphs) graph.group.addEventListener("click", (event) => {
    const one = event.target.closest(".graph > g"), frame = graph.frames.find((each) => each.one === one);
    if (frame && frame.look !== "rest") zoom(graph, frame);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { graph, frame } = chosen || { graph: graphs[0], frame: graphs[0].zoomed };
    const beside = graph.frames.filter((one) => one.shown && one.depth === frame.depth), at = beside.indexOf(frame), edge = 1e-5;
    let to = null;
    if (event.key === "/") { event.preventDefault(); return input.focus(); }
    if (event.key === "i") return turn();
    if (event.key === "0") return reset();
    if (event.key === "Enter") return zoom(graph, frame);
    if (event.key === "Escape" || event.key === "Backspace") {
      const last = past.pop();
      return last ? zoom(last[0], last[1], false) : zoom(graph, graph.frames[0], false);
    }
    if (event.key === "ArrowLeft") to = beside[at - 1];
    else if (event.key === "ArrowRight") to = beside[at + 1];
    else if (event.key === (icicle ? "ArrowDown" : "ArrowUp"))
      to = graph.frames.filter((one) => one.shown && one.depth === frame.depth + 1 && one.x >= frame.x - edge && one.x + one.w <= frame.x + frame.w + edge).sort((a, b) => b.w - a.w)[0];
    else if (event.key === (icicle ? "ArrowUp" : "ArrowDown"))
      to = graph.frames.find((one) => one.shown && one.depth === frame.depth - 1 && one.x <= frame.x + edge && one.x + one.w >= frame.x + frame.w - edge);
    else return;
    event.preventDefault();
    if (to) choose(graph, to);
  });
})();
