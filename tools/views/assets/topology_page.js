// Switches the theme; the first one is that of the system.
"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const show = (dark) => { root.dataset.theme = dark ? "dark" : "light"; button.setAttribute("aria-pressed", String(dark)); };
  show(matchMedia("(prefers-color-scheme: dark)").matches);
  button.addEventListener("click", () => show(root.dataset.theme !== "dark"));
})();
