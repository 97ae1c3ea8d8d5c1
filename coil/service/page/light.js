// The button for light or dark; theme.js sets what was chosen before.

import { byId } from "./dom.js";

/** Let the button choose, and remember it. */
export function listenToTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : system.matches;
  };
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("coil-theme", next);
    } catch {
      // Where storage is forbidden the choice lasts as long as the page.
    }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}
