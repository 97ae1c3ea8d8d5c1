// The button for light and dark mode; theme.js applies the previous choice.

import { byId } from "./dom.js";

/** Listen to the button, and remember the choice. */
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
      // Without storage, the choice lasts as long as the page.
    }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}
