// The page around a flame graph: theme, keys that work everywhere, and the table that belongs to it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement, byId = (id) => document.getElementById(id);
  const setTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; };
  if (!root.dataset.theme) setTheme(matchMedia("(prefers-color-scheme: dark)").matches); // else set by an embedding page
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  const keys = byId("keys");
  byId("help").addEventListener("click", () => keys.showModal());
  keys.querySelector("button").addEventListener("click", () => keys.close()); // no form: sandboxed frames block them

  const rows = [...document.querySelectorAll("tr[data-frame]")];
  const graph = byId("graph");
  const flame = data.tree && new Flame(graph, Flame.read(data.tree), data.words, {
    unit: data.unit, period: data.period,
    onChoose: (frame) => {
      for (const row of rows) {
        const is = Number(row.dataset.frame) === frame;
        row.classList.toggle("chosen", is);
        row.querySelector("button").setAttribute("aria-pressed", String(is));
      }
    },
  });
  window.flame = flame; // for inspection in the browser's console
  for (const row of rows) row.querySelector("button").addEventListener("click", () => {
    flame.pick(Number(row.dataset.frame));
    graph.scrollIntoView({ block: "nearest" });
  });

  // The table by another of its columns of numbers; the largest first.
  const heads = [...document.querySelectorAll("th button")];
  for (const head of heads) head.addEventListener("click", () => {
    const column = head.parentElement.cellIndex, body = document.querySelector("tbody");
    const value = (row) => Math.abs(Number(row.cells[column].dataset.value));
    body.append(...[...body.rows].sort((a, b) => value(b) - value(a)));
    for (const one of heads) one.parentElement.removeAttribute("aria-sort");
    head.parentElement.setAttribute("aria-sort", "descending");
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input") || keys.open) return;
    if (event.key === "/" && flame) { event.preventDefault(); flame.search.focus(); flame.search.select(); }
    else if (event.key === "?") keys.showModal();
    else if (event.key === "t") setTheme(root.dataset.theme !== "dark");
  });
})();
