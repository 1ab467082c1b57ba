// Schema changes, newest first, and the columns of one table.

import { byId, element, keep, put } from "./dom.js";
import { NotLoggedInError, request } from "./session.js";
import { clock } from "./words.js";

export function showChanges(update, openTable) {
  const list = byId("change-list");
  const changes = [...update.changes].reverse();
  if (!changes.length) {
    keep(list, ["none"], () => "none", () => element("li", { class: "empty" }, "No schema has changed in this run."),
      () => {});
    return;
  }
  keep(list, changes, (change) => `${change.epoch} ${change.table} ${change.target}`, (change) => element("li", {},
    element("time", { datetime: new Date(change.at_ms).toISOString() }, clock(change.at_ms)),
    element("span", { class: "muted" }, `epoch ${change.epoch}`),
    element("div", { class: "text" },
      element("button", { type: "button", class: "link", click: () => openTable(change.table) }, change.table),
      change.target === change.table ? "" : ` into ${change.target}`,
      change.changes.map((text) => element("p", {}, text)))),
  () => {});
}

/** The columns of a table as of its newest sealed epoch, in the table's window. */
export class Columns {
  constructor() {
    this.place = element("details", { class: "columns" }, element("summary", {}, "Columns"));
    this.body = element("div");
    this.place.append(this.body);
    this.place.addEventListener("toggle", () => { if (this.place.open) this.load(); });
  }

  /** Clear the columns for another table. */
  of(name) {
    this.name = name;
    this.place.open = false;
    put(this.body);
  }

  async load() {
    const { name } = this;
    try {
      const answer = await request(`/v1/schema?${new URLSearchParams({ table: name })}`);
      const schema = await answer.json();
      if (this.name === name) put(this.body, answer.ok ? columnTable(schema) : element("p", { class: "muted" }, schema.text));
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof NotLoggedInError)) throw error;
      put(this.body, element("p", { class: "muted" }, "The run does not answer."));
    }
  }
}

function columnTable(schema) {
  const rows = schema.columns.map(({ name, type, nullable }) => element("tr", {},
    element("th", { scope: "row" }, name), element("td", {}, type),
    element("td", {}, schema.primary_key.includes(name) ? "primary key" : nullable ? "may be null" : "")));
  return [element("table", {}, element("tbody", {}, rows)),
    element("p", { class: "detail" }, `Version ${schema.version.slice(0, 12)} of the schema`)];
}
