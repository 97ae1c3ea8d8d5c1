// Runs before the first paint, so that a remembered choice of light or dark does not flash.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("coil-theme");
  } catch {
    // Storage may be forbidden; the system's choice then holds.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
