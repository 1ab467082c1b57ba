// The head of the page: the pipeline, its present figures, and the flow from enumerator to target.

import { byId, element, keep, put, setText } from "./dom.js";
import { counted, duration, durationParts, number, short, size } from "./words.js";

const STAGE_NAMES = {
  source: "the source", rate_limit: "the rate limit", decode: "decoding", hand_off: "the hand-off", bridge: "writing segments",
  spark: "writing rows", commit: "the commit",
};
/** The box of the flow to which each stage of a status belongs. */
const BOXES = { source: "readers", rate_limit: "readers", decode: "readers", hand_off: "readers", bridge: "readers",
  spark: "writer", commit: "target" };

export function showHead(update) {
  const { status } = update;
  document.title = `${status.pipeline} · raycdc`;
  setText(byId("pipeline"), status.pipeline);
  const step = byId("step");
  setText(step, status.run?.step ?? "at rest");
  step.className = `pill ${stepClass(status.run?.step)}`;
  byId("read-only").hidden = update.may.act;
  setText(byId("status-source"), `Reported by ${status.said}.`);
  const run = status.run;
  setText(byId("run-info"), run
    ? `Writes to ${status.sink ?? "its target"}, for ${duration(status.at_ms - run.started_ms)}, as process ${run.pid} on ${
      run.host}${run.local ? ", without Ray and Spark (--local)" : ""}.`
    : "");
}

const stepClass = (step) => (step === "running" ? "good" : step === "ended" ? "" : "busy");

export function showFigures(update) {
  const { job, at_ms: now } = update.status;
  const counts = job.counts ?? {};
  const figures = [
    figure("lag", "Lag", job.lag_ms === null ? null : durationParts(job.lag_ms), emitted(job)),
    figure("rate", "Rows read per second", job.rows_per_second === null ? null : short(job.rows_per_second), ""),
    figure("committed", "Rows committed", short(counts.rows_committed ?? 0), "in this run"),
    figure("commit", "Last commit", job.last_commit?.at_ms ? durationParts(now - job.last_commit.at_ms) : null,
      job.last_commit ? `ago: epoch ${job.last_commit.epoch}` : "nothing yet"),
    figure("tables", "Tables", [number(total(counts.tables)), ""], phases(counts.tables)),
  ];
  const logRetention = retention(job.backlog);
  if (logRetention) figures.push(logRetention);
  if (counts.rows_left_out) figures.push(figure("left-out", "Rows left out", short(counts.rows_left_out), "in all runs"));
  if (counts.values_lost) figures.push(figure("lost", "Values lost", short(counts.values_lost), "in all runs"));
  keep(byId("figures"), figures, (each) => each.id, () => element("div", {}, element("dt"), element("dd")),
    (box, each) => {
      box.id = `figure-${each.id}`;
      setText(box.firstChild, each.name);
      const [value, unit] = each.parts ?? ["–", ""];
      const key = `${value} ${unit} ${each.detail}`;
      if (box.dataset.shown === key) return;
      box.dataset.shown = key;
      put(box.lastChild, value, unit && element("span", { class: "unit" }, unit),
        each.detail && element("div", { class: "detail" }, each.detail));
    });
}

const figure = (id, name, parts, detail) => ({ id, name, parts, detail });

const emitted = (job) => {
  const lag = job.lag?.current_emit_event_time_lag_ms;
  return lag === null || lag === undefined ? "" : `last change took ${duration(lag)}`;
};

const total = (tables) => Object.values(tables ?? {}).reduce((sum, count) => sum + count, 0);

const phases = (tables) => Object.entries(tables ?? {}).sort((a, b) => b[1] - a[1])
  .map(([phase, count]) => `${number(count)} ${phase}`).join(", ");

function retention(backlog) {
  if (backlog.retention_headroom_seconds !== null) {
    return figure("log-retention", "Log retention", durationParts(1000 * backlog.retention_headroom_seconds),
      "left for the unread log");
  }
  return backlog.kept_until_deleted ? figure("log-retention", "Log retention", ["unlimited", ""], "until it is deleted")
    : null;
}

export function showFlow(update, committedRate) {
  const { job, run, sink } = update.status;
  const counts = job.counts ?? {};
  const busiest = job.bottleneck;
  const chunks = job.readers.reduce((sum, reader) => sum + reader.chunks, 0);
  const partitions = job.readers.reduce((sum, reader) => sum + reader.partitions, 0);
  const logs = job.readers.filter((reader) => reader.reads_log);
  const open = job.readers.reduce((sum, reader) => sum + reader.open_bytes, 0);
  const epoch = update.lastEpoch;
  const stages = [
    {
      id: "enumerator", name: "Enumerator", lead: counted(total(counts.tables), "table"),
      facts: [job.chunks_waiting ? `at least ${counted(job.chunks_waiting, "chunk")} to assign` : "no chunk waits",
        unread(job.backlog)],
      join: { text: [counted(chunks + partitions + logs.length, "split")], moves: chunks > 0 },
    },
    {
      id: "readers", name: job.readers.length === 1 ? "Reader" : "Readers",
      lead: counted(job.readers.length, "reader"),
      facts: [Object.entries(job.nodes).filter(([node]) => node && node !== "state")
        .map(([node, count]) => `${count} on ${node}`).join(", "),
      chunks ? `${counted(chunks, "chunk")} being read` : "", open ? `${size(open)} not sealed yet` : ""],
      join: rateJoin(job.rows_per_second),
    },
    {
      id: "writer", name: run?.local ? "Writer" : "Spark",
      lead: epoch ? counted(epoch.rows, "row") : "no epoch yet",
      facts: epoch ? [`epoch ${epoch.epoch}`, epoch.staging_seconds ? `written in ${duration(1000 * epoch.staging_seconds)}` : ""] : [],
      join: rateJoin(committedRate),
    },
    {
      id: "target", name: "Target", lead: sink ?? "–",
      facts: [counts.commits ? counted(counts.commits, "commit") : "",
        epoch ? `last one took ${duration(1000 * epoch.commit_seconds)}` : ""],
      join: null,
    },
  ];
  const most = busiest ? BOXES[busiest.stage] : null;
  keep(byId("stages"), stages, (stage) => stage.id, makeStage, (box, stage) => {
    box.classList.toggle("busiest", stage.id === most);
    const [head, lead, facts, join] = box.children;
    setText(head.firstChild, stage.name);
    setText(head.lastChild, stage.id === most ? `${Math.round(100 * busiest.share)} % busy` : "");
    setText(lead, stage.lead);
    setText(facts, stage.facts.filter(Boolean).join(" · "));
    if (!stage.join) return;
    join.classList.toggle("moves", stage.join.moves);
    const key = stage.join.text.join("\n");
    if (join.dataset.shown !== key) {
      join.dataset.shown = key;
      put(join.firstChild, stage.join.text[0], stage.join.text.length > 1 ? [" ", element("br")] : "", stage.join.text[1] ?? "");
    }
  });
  setText(byId("bottleneck"), busiest
    ? `Most time is spent in ${STAGE_NAMES[busiest.stage] ?? busiest.stage} (${Math.round(100 * busiest.share)} %): ${
      busiest.why}` : "");
}

function makeStage(stage) {
  const box = element("li", { class: "stage", id: `stage-${stage.id}` },
    element("h3", {}, element("span"), element("span", { class: "share" })),
    element("p", { class: "lead" }), element("p", { class: "facts" }));
  if (stage.join) box.append(element("p", { class: "join" }, element("span"), element("span", { class: "wire" })));
  return box;
}

const rateJoin = (rate) => (rate === null || rate === undefined
  ? { text: ["–"], moves: false } : { text: [short(rate).join(" ").trim(), "rows/s"], moves: rate > 0 });

function unread(backlog) {
  if (backlog.records !== null) return `${counted(backlog.records, "message")} unread`;
  return backlog.bytes === null ? "" : `${size(backlog.bytes)} unread`;
}

export function showAttention(update, openTable) {
  const parked = update.parked;
  const more = (update.status.job.counts?.tables.parked ?? parked.length) - parked.length;
  byId("attention").hidden = parked.length === 0;
  keep(byId("attention-list"), parked.slice(0, 8), (table) => table.table, (table) => element("li", {},
    element("p", {}, element("button", { type: "button", class: "link", click: () => openTable(table.table) }, table.table),
      " ", element("span", { class: "pill bad" }, table.phase)),
    element("p", { class: "reason" }), element("p", { class: "way-out" })),
  (item, table) => {
    setText(item.children[1], table.parked?.reason ?? "");
    setText(item.children[2], wayOut(table));
  });
  setText(byId("attention-title"), more > 0 || parked.length > 8
    ? `${counted(parked.length + Math.max(0, more), "table")} need attention` : "Needs attention");
}

/** The remedy for a table that is not followed. */
export function wayOut(table) {
  if (table.parked?.again) return "It is resnapshotted automatically.";
  if (table.phase === "paused") return "Resume goes on from where it was left; resnapshot reads the whole table again.";
  if (table.phase === "removed") return `raycdc tables add CONFIG ${table.table} reads the whole table again.`;
  if (table.phase !== "parked") return "";
  return "The other tables go on. After the cause is fixed, resume goes on from where it was left if possible; "
    + "resnapshot reads the whole table again. Or exclude the table in the configuration.";
}
