// Keyboard: to the search box, from hit to hit, and back to all hits.

import { byId } from "./dom.js";

/** `back` goes from one word back to all hits; it returns whether a word was selected. */
export function watchKeys(back) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    const box = byId("q");
    const writes = target.matches("input:not([type=checkbox]), select, textarea");
    if (key === "/" && !writes) {
      event.preventDefault();
      box.focus();
      box.select();
    } else if (key === "Escape") {
      if (back()) event.preventDefault();
    } else if ((key === "ArrowDown" || key === "ArrowUp") && (target === box || target.closest(".hit"))) {
      step(target, key === "ArrowDown" ? 1 : -1, event);
    }
  });
}

/** From the search box to the hits and back, title by title. */
function step(target, by, event) {
  const box = byId("q");
  const titles = [...byId("results").querySelectorAll(".hit .title")];
  const at = titles.findIndex((title) => title.closest(".hit") === target.closest?.(".hit"));
  const next = at + by;
  if (!titles.length || next >= titles.length || (target === box && by < 0)) return;
  event.preventDefault();
  (next < 0 ? box : titles[next]).focus();
}
