// The readers, and the splits of each.

import { byId, element, keep, put, setText } from "./dom.js";
import { counted, size } from "./words.js";

const SHOWN = 24;

export function showReaders(update) {
  const reports = new Map(update.status.job.readers.map((reader) => [reader.reader, reader]));
  const list = byId("reader-list");
  if (!update.splits.length) {
    put(list, element("li", { class: "empty" }, "No reader is up yet."));
    return;
  }
  keep(list, update.splits, (held) => `reader ${held.reader}`, make, (item, held) => {
    const report = reports.get(held.reader);
    const [head, facts, splits] = item.children;
    setText(head.firstChild, `Reader ${held.reader}`);
    head.lastChild.hidden = !report?.reads_log;
    setText(facts, [`process ${held.pid}`, held.node && held.node !== "state" ? `on ${held.node}` : "",
      counted(held.count, "split"), report?.open_bytes ? `${size(report.open_bytes)} not sealed yet` : ""]
      .filter(Boolean).join(" · "));
    const names = held.splits.slice(0, SHOWN);
    const more = held.count - names.length;
    keep(splits, more > 0 ? [...names, `and ${more} more`] : names, (name) => name, (name) => element("li", {}, name),
      () => {});
  });
}

const make = () => element("li", {},
  element("h3", {}, element("span"), element("span", { class: "pill good", hidden: true }, "reads the log")),
  element("p", { class: "detail" }), element("ul", { class: "splits", "aria-label": "Its splits" }));
