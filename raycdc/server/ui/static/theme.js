// Light or dark colours: those of the system, or the choice in this browser.

import { setAttribute, setText } from "./dom.js";

const KEY = "raycdc-colours";
const CHOICES = { auto: "Auto", light: "Light", dark: "Dark" };
const LABELS = { auto: "as the system has them", light: "light", dark: "dark" };
const dark = matchMedia("(prefers-color-scheme: dark)");

function apply(button) {
  const chosen = localStorage.getItem(KEY) ?? "auto";
  const isDark = chosen === "dark" || (chosen !== "light" && dark.matches);
  document.documentElement.dataset.colours = isDark ? "dark" : "light";
  setText(button, CHOICES[chosen] ?? CHOICES.auto);
  setAttribute(button, "aria-label", `Colours: ${LABELS[chosen] ?? LABELS.auto}`);
}

/** Make `button` switch to the next choice. */
export function listenToTheme(button) {
  const choices = Object.keys(CHOICES);
  button.addEventListener("click", () => {
    const now = choices.indexOf(localStorage.getItem(KEY) ?? "auto");
    localStorage.setItem(KEY, choices[(now + 1) % choices.length]);
    apply(button);
  });
  dark.addEventListener("change", () => apply(button));
  apply(button);
}
