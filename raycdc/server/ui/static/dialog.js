// The window with the details of one table.

import { Actions } from "./actions.js";
import { byId, element, put } from "./dom.js";
import { Columns } from "./schemas.js";
import { wayOut } from "./overview.js";
import { commitText, progressText } from "./tables.js";
import { clock, counted, duration, number, phaseClass, size } from "./words.js";

export class TableDialog {
  constructor() {
    this.dialog = byId("table-dialog");
    this.name = null;
    this.actions = new Actions();
    this.columns = new Columns();
    this.dialog.addEventListener("close", () => { this.name = null; });
    // A click outside the window closes it.
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
  }

  /** Open the window of the table called `name`; `table` is its report, or undefined if there is none yet. */
  open(name, update, table) {
    this.name = name;
    put(byId("table-dialog-title"), name);
    this.particulars = element("dl", { class: "particulars" });
    put(byId("table-dialog-body"), this.actions.place, this.particulars, this.columns.place);
    this.columns.of(name);
    if (table) this.show(table, update);
    this.dialog.showModal();
  }

  close() {
    this.dialog.close();
  }

  /** Show a new report of the table. */
  show(table, update) {
    if (!this.particulars || this.name !== table.table) return;
    this.actions.show(table, update.may);
    const shown = [...lines(table, update.status.at_ms)].filter(([, value]) => value !== "" && value !== null);
    const key = JSON.stringify(shown.map(([name, value]) => [name, value instanceof Node ? value.textContent : value]));
    if (this.particulars.dataset.shown === key) return;
    this.particulars.dataset.shown = key;
    put(this.particulars, shown.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }
}

function* lines(table, now) {
  const { snapshot, parked } = table;
  yield ["Phase", element("span", { class: `pill ${phaseClass(table.phase)}` }, table.phase)];
  yield ["Requested", table.asked ?? ""];
  if (parked) {
    yield ["Why", parked.reason];
    yield ["What to do", wayOut(table)];
    yield ["Since", parked.at_ms ? clock(parked.at_ms) : ""];
    yield ["Left at", parked.position];
  }
  yield ["Targets", table.targets.join("\n")];
  yield ["Progress", progressText(table)];
  if (snapshot) {
    const about = snapshot.rows_estimated === null ? "" : ` (the source estimates ${number(snapshot.rows_estimated)})`;
    yield ["Snapshot", snapshot.rows_done === null ? "" : `${counted(snapshot.rows_done, "row")}${about}, ${
      snapshot.bytes_done === null ? "" : `${size(snapshot.bytes_done)}, `}${snapshot.chunks_done} of ${
      snapshot.chunks_total ?? "?"} chunks`];
  }
  yield ["Rows in this run", table.rows === null ? "" : number(table.rows)];
  yield ["Rows per second", table.rows_per_second === null ? "" : number(table.rows_per_second)];
  yield ["Lag", table.lag_ms === null ? "" : duration(table.lag_ms)];
  yield ["Last commit", table.last_commit ? `${commitText(table.last_commit, now)} (epoch ${table.last_commit.epoch})` : ""];
  yield ["Rows left out", table.rows_left_out ? number(table.rows_left_out) : ""];
  yield ["Values lost", table.values_lost ? number(table.values_lost) : ""];
}
