// Changes of tables' schemas, newest first, and the columns of one table.

import { byId, element, keep, put } from "./dom.js";
import { NotLetInError, ask } from "./session.js";
import { clock } from "./words.js";

export function showChanges(look, openTable) {
  const list = byId("change-list");
  const changes = [...look.changes].reverse();
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

/** The columns of a table, as the newest sealed epoch has them, for its window. */
export class Columns {
  constructor() {
    this.place = element("details", { class: "columns" }, element("summary", {}, "Columns"));
    this.body = element("div");
    this.place.append(this.body);
    this.place.addEventListener("toggle", () => { if (this.place.open) this.load(); });
  }

  /** Another table's window opens. */
  of(name) {
    this.name = name;
    this.place.open = false;
    put(this.body);
  }

  async load() {
    const { name } = this;
    try {
      const answer = await ask(`/v1/schema?${new URLSearchParams({ table: name })}`);
      const said = await answer.json();
      if (this.name === name) put(this.body, answer.ok ? drawn(said) : element("p", { class: "muted" }, said.text));
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof NotLetInError)) throw error;
      put(this.body, element("p", { class: "muted" }, "The run does not answer."));
    }
  }
}

function drawn(schema) {
  const rows = schema.columns.map(({ name, type, nullable }) => element("tr", {},
    element("th", { scope: "row" }, name), element("td", {}, type),
    element("td", {}, schema.primary_key.includes(name) ? "primary key" : nullable ? "may be null" : "")));
  return [element("table", {}, element("tbody", {}, rows)),
    element("p", { class: "beside" }, `Version ${schema.version.slice(0, 12)} of the schema`)];
}
