// The epochs of the run, newest on the right: the time to write and to record each, and its rows.

import { byId, element, keep, put, setAttribute, setText } from "./dom.js";
import { clock, counted, duration } from "./words.js";

const SHOWN = 90;
/** The maximum width of a bar, in pixels. */
const BAR_PX = 24;

export class Epochs {
  constructor(history) {
    this.history = history;
    this.chosen = null;
    this.bars = element("div", { class: "bars", role: "group", "aria-label": "Epochs, newest last. Arrow keys go through them." });
    this.axis = element("p", { class: "epoch-axis" }, element("span"), element("span"));
    this.text = element("p", { class: "epoch-text" });
    this.legend = element("p", { class: "legend" }, element("span", { class: "first-series" }, "writing rows"),
      element("span", { class: "second-series" }, "recording them"));
    this.frame = element("div", { class: "epoch-frame" }, this.bars, this.axis);
    put(byId("epoch-bars"), this.frame, this.legend, this.text);
    this.bars.addEventListener("keydown", (event) => this.key(event));
  }

  show() {
    const epochs = this.history.epochs.slice(-SHOWN);
    const longest = Math.max(0.05, ...epochs.map((epoch) => epoch.staging_seconds + epoch.commit_seconds));
    byId("epoch-bars").hidden = epochs.length === 0;
    setText(byId("epochs-summary"), epochs.length
      ? `The last ${epochs.length}; the longest took ${duration(1000 * longest)}` : "No epoch is in the sink yet.");
    if (!epochs.length) return;
    if (!epochs.some((epoch) => epoch.epoch === this.chosen)) this.chosen = null;
    const shown = this.chosen ?? epochs.at(-1).epoch;
    keep(this.bars, epochs, (epoch) => epoch.epoch, (epoch) => this.bar(epoch), (bar, epoch) => {
      const [commit, stage] = bar.children;
      stage.style.height = `${(100 * epoch.staging_seconds) / longest}%`;
      commit.style.height = `${(100 * epoch.commit_seconds) / longest}%`;
      setAttribute(bar, "aria-pressed", epoch.epoch === this.chosen);
      bar.tabIndex = epoch.epoch === shown ? 0 : -1;
    });
    this.frame.style.maxWidth = `${Math.max(240, epochs.length * BAR_PX)}px`;
    setText(this.axis.firstChild, clock(epochs[0].at_ms));
    setText(this.axis.lastChild, clock(epochs.at(-1).at_ms));
    setText(this.text, words(epochs.find((epoch) => epoch.epoch === shown)));
  }

  bar(epoch) {
    return element("button", {
      type: "button", class: "bar", "aria-label": words(epoch), title: words(epoch),
      click: () => this.choose(epoch.epoch),
    }, element("i", { class: "commit" }), element("i", { class: "stage-time" }));
  }

  choose(epoch) {
    this.chosen = this.chosen === epoch ? null : epoch;
    this.show();
  }

  key(event) {
    const way = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    const other = way && document.activeElement[way];
    if (!other) return;
    event.preventDefault();
    this.chosen = Number(other.dataset.key);
    this.show();
    other.focus();
  }
}

function words(epoch) {
  const largest = epoch.largest.map(([table, rows]) => `${table} ${counted(rows, "row")}`).join(", ");
  const more = epoch.tables > epoch.largest.length ? `, and ${epoch.tables - epoch.largest.length} more` : "";
  return `Epoch ${epoch.epoch} at ${clock(epoch.at_ms)}: ${counted(epoch.rows, "row")} of ${counted(epoch.tables, "table")}${
    largest ? ` (${largest}${more})` : ""}, written in ${duration(1000 * epoch.staging_seconds)}, recorded in ${
    duration(1000 * epoch.commit_seconds)}.`;
}
