// The list of tables: one page of it. The run filters and sorts.

import { byId, element, keep, setAttribute, setText } from "./dom.js";
import { counted, duration, number, phaseClass, short } from "./words.js";

const LIMIT = 50;
const COLUMNS = [
  { title: "Table", sort: "table" },
  { title: "Phase", sort: "phase" },
  { title: "Progress", sort: "done", descending: true },
  { title: "Rows", sort: "rows", descending: true, number: true },
  { title: "Rows/s", sort: "rate", descending: true, number: true },
  { title: "Lag", number: true },
  { title: "Last commit", sort: "commit", descending: true },
];
const PHASES = ["parked", "paused", "resuming", "snapshot", "pending", "new", "stream", "ended", "removed"];
/** Milliseconds after the last key until the filter is applied. */
const TYPED_MS = 250;

export class Tables {
  /** Calls `onQuery()` when the query changes, and `openTable(name)` when a table is clicked. */
  constructor(onQuery, openTable) {
    this.onQuery = onQuery;
    this.openTable = openTable;
    this.sort = "attention";
    this.descending = false;
    this.offset = 0;
    this.reports = new Map();
    this.head();
    this.phases({});
    this.listen();
  }

  /** The query for the run. */
  get query() {
    return new URLSearchParams({
      contains: byId("contains").value.trim(), phase: byId("phase").value, sort: this.sort,
      descending: this.descending ? "1" : "0", offset: String(this.offset), limit: String(LIMIT),
    }).toString();
  }

  head() {
    for (const column of COLUMNS) {
      const title = column.sort
        ? element("button", { type: "button", click: () => this.sortBy(column) }, column.title) : column.title;
      byId("table-list").tHead.rows[0].append(
        element("th", { scope: "col", class: column.number ? "number" : null, "data-sort": column.sort }, title));
    }
  }

  listen() {
    let typed = null;
    byId("contains").addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => this.turn(0), TYPED_MS);
    });
    byId("phase").addEventListener("change", () => this.turn(0));
    byId("filter").addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typed);
      this.turn(0);
    });
    byId("previous").addEventListener("click", () => this.turn(this.offset - LIMIT));
    byId("next").addEventListener("click", () => this.turn(this.offset + LIMIT));
  }

  sortBy(column) {
    // Clicks on a title: its own direction, the opposite one, and back to the order by attention.
    if (this.sort !== column.sort) [this.sort, this.descending] = [column.sort, Boolean(column.descending)];
    else if (this.descending === Boolean(column.descending)) this.descending = !this.descending;
    else [this.sort, this.descending] = ["attention", false];
    for (const cell of byId("table-list").tHead.rows[0].cells) {
      const direction = cell.dataset.sort && cell.dataset.sort === this.sort
        ? (this.descending ? "descending" : "ascending") : null;
      setAttribute(cell, "aria-sort", direction);
    }
    this.turn(0);
  }

  turn(offset) {
    this.offset = Math.max(0, offset);
    this.onQuery();
  }

  phases(counts) {
    const select = byId("phase");
    const known = PHASES.filter((phase) => counts[phase] || select.value === phase);
    const options = [["", "All phases"], ...known.map((phase) => [phase, `${phase} (${number(counts[phase] ?? 0)})`])];
    keep(select, options, ([value]) => value, ([value]) => element("option", { value }), (option, [, text]) =>
      setText(option, text));
  }

  show(update) {
    const { tables, job, at_ms: now } = update.status;
    this.reports = new Map(tables.map((table) => [table.table, table]));
    this.offset = update.offset;
    this.phases(job.counts?.tables ?? {});
    setText(byId("tables-count"), number(update.matching));
    keep(byId("table-list").tBodies[0], tables, (table) => table.table, (table) => this.row(table), (row, table) =>
      fill(row, table, now));
    const empty = byId("tables-empty");
    empty.hidden = tables.length > 0;
    byId("table-list").hidden = tables.length === 0;
    setText(empty, byId("contains").value.trim() || byId("phase").value
      ? "No table has such a name and phase." : "The run has not found its tables yet.");
    const last = update.offset + tables.length;
    setText(byId("tables-shown"), tables.length
      ? `${number(update.offset + 1)}–${number(last)} of ${counted(update.matching, "table")}` : "");
    byId("previous").disabled = update.offset === 0;
    byId("next").disabled = last >= update.matching;
  }

  row(table) {
    const name = element("button", { type: "button", class: "link", click: () => this.openTable(table.table) }, table.table);
    return element("tr", {},
      element("th", { scope: "row" }, name, element("span", { class: "target" })),
      element("td", { "data-label": "Phase" }, element("span", { class: "pill" })),
      element("td", { "data-label": "Progress" }),
      ...["Rows", "Rows/s", "Lag"].map((label) => element("td", { class: "number", "data-label": label })),
      element("td", { "data-label": "Last commit" }));
  }
}

function fill(row, table, now) {
  const [name, phase, progress, rows, rate, lag, commit] = row.cells;
  const targets = table.targets.length === 1 && table.targets[0] === table.table ? "" : table.targets.join(", ");
  setText(name.lastChild, targets ? `into ${targets}` : "");
  const requested = table.asked ? ` (${table.asked} requested)` : "";
  setText(phase.firstChild, table.phase + requested);
  setAttribute(phase.firstChild, "class", `pill ${phaseClass(table.phase)}`);
  fillProgress(progress, table);
  setText(rows, table.rows === null ? "" : number(table.rows));
  setText(rate, table.rows_per_second ? short(table.rows_per_second).join(" ").trim() : "");
  setText(lag, table.lag_ms === null ? "" : duration(table.lag_ms));
  setText(commit, commitText(table.last_commit, now));
}

/** The progress of a table's snapshot or backfill in words; empty if none is running. */
export function progressText(table) {
  const { snapshot, backfill } = table;
  if (table.phase === "snapshot" && snapshot) {
    const about = snapshot.rows_estimated === null ? "" : ` of about ${number(snapshot.rows_estimated)}`;
    const rows = snapshot.rows_done === null ? "" : `${number(snapshot.rows_done)}${about} rows`;
    const chunks = snapshot.chunks_total ? `${snapshot.chunks_done}/${snapshot.chunks_total} chunks` : "";
    const left = snapshot.eta_seconds === null ? "" : `${duration(1000 * snapshot.eta_seconds)} left`;
    return [rows || chunks, left].filter(Boolean).join(", ");
  }
  if (backfill) {
    const left = backfill.eta_seconds === null ? "" : `${duration(1000 * backfill.eta_seconds)} left`;
    return [`backfill: ${counted(backfill.rows_done, "row")} read again`, left].filter(Boolean).join(", ");
  }
  return "";
}

function fillProgress(cell, table) {
  const running = table.phase === "snapshot" ? table.snapshot : table.backfill;
  if (!running) {
    if (cell.firstChild) cell.replaceChildren();
    return;
  }
  if (!cell.firstChild) {
    cell.append(element("div", { class: "progress" }, element("progress", { max: 100 }),
      element("span", { class: "detail" })));
  }
  const [bar, text] = cell.firstChild.children;
  if (running.percent === null) bar.removeAttribute("value");
  else bar.value = running.percent;
  setAttribute(bar, "aria-label", `Progress of ${table.table}`);
  setText(text, [running.percent === null ? "" : `${running.percent} %`, progressText(table)].filter(Boolean).join(" · "));
}

/** The age of a commit, and its number of rows. */
export function commitText(commit, now) {
  if (!commit) return "";
  const when = commit.at_ms === null ? `epoch ${commit.epoch}` : `${duration(now - commit.at_ms)} ago`;
  return commit.rows === null ? when : `${when}, ${counted(commit.rows, "row")}`;
}
