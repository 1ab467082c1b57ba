// Warnings and errors of the run, newest first.

import { byId, element, keep, setText } from "./dom.js";
import { clock } from "./words.js";

export function showMessages(update) {
  const { warnings, errors } = update.status.job;
  const notes = [...warnings.map((note) => ["warning", note]), ...errors.map((note) => ["error", note])]
    .sort((a, b) => b[1].at_ms - a[1].at_ms);
  const list = byId("note-list");
  if (!notes.length) {
    keep(list, ["none"], () => "none", () => element("li", { class: "empty" }, "No warning and no error in this run."),
      () => {});
    return;
  }
  keep(list, notes, ([kind, note]) => `${kind} ${note.at_ms} ${note.text}`, ([kind, note]) => element("li", {},
    element("time", { datetime: new Date(note.at_ms).toISOString() }, clock(note.at_ms)),
    element("span", {}, element("span", { class: `pill ${kind === "error" ? "bad" : "wait"}` }, kind)),
    element("p", { class: "text" })),
  (item, [, note]) => setText(item.lastChild, note.text));
}
