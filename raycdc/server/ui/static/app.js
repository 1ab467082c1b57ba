// The start of the page: the sign-in, then an update from the run every second.

import { announce, byId, setText } from "./dom.js";
import { Charts } from "./charts.js";
import { TableDialog } from "./dialog.js";
import { Epochs } from "./epochs.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { showMessages } from "./messages.js";
import { showAttention, showFigures, showFlow, showHead } from "./overview.js";
import { showReaders } from "./readers.js";
import { showChanges } from "./schemas.js";
import { codeOfAddress, hasKey, logIn, logOut } from "./session.js";
import { Tables } from "./tables.js";
import { listenToTheme } from "./theme.js";

const SIGNED_OUT = "This browser is not signed in any more: another window signed out, the run was restarted, or no page was "
  + "open for twelve hours. The command above prints a new link.";

const history = new History();
const charts = new Charts(history);
const epochs = new Epochs(history);
const dialog = new TableDialog();
let last = null;
let announced = "";

const feed = new Feed({
  onUpdate(update, first) {
    history.add(update, first);
    last = { ...update, lastEpoch: history.lastEpoch };
    show(last);
  },
  onSilence(text) {
    const banner = byId("connection");
    setText(banner, text);
    banner.hidden = false;
    document.body.classList.add("stale");
  },
  onRefused() {
    showSignIn(last ? SIGNED_OUT : "");
  },
});

const tables = new Tables(() => follow(), openTable);

/** Request updates for the tables of the list, with the details of the table whose window is open. */
function follow() {
  const query = new URLSearchParams(tables.query);
  if (dialog.name !== null) query.set("table", dialog.name);
  feed.follow(query.toString());
}

function show(update) {
  byId("connection").hidden = true;
  document.body.classList.remove("stale");
  showHead(update);
  showFigures(update);
  showFlow(update, history.committedRate);
  showAttention(update, openTable);
  charts.draw();
  epochs.show();
  tables.show(update);
  showReaders(update);
  showChanges(update, openTable);
  showMessages(update);
  if (update.table) dialog.show(update.table, update);
  announceStep(update);
}

/** Announce the step of the run and the number of parked tables to screen readers, when one of them changes. */
function announceStep(update) {
  const { run, job } = update.status;
  const parked = job.counts?.tables.parked ?? 0;
  const text = `${update.status.pipeline}: ${run?.step ?? "at rest"}${parked ? `, ${parked} parked` : ""}`;
  if (text !== announced) announce(text);
  announced = text;
}

function openTable(name) {
  const table = tables.reports.get(name) ?? last.parked.find((each) => each.table === name);
  dialog.open(name, last, table);
  follow();
}

/** Show the sign-in form, with `text` as its error. */
function showSignIn(text) {
  feed.stop();
  dialog.close();
  byId("view").hidden = true;
  byId("sign-in").hidden = false;
  setText(byId("login-error"), text);
  byId("code").focus();
}

/** Show the run. */
function showRun() {
  byId("sign-in").hidden = true;
  byId("view").hidden = false;
  follow();
}

async function signIn(code) {
  try {
    await logIn(code);
  } catch (refused) {
    showSignIn(refused instanceof TypeError ? "The run does not answer." : refused.message);
    return;
  }
  showRun();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("code");
  const given = field.value.trim();
  field.value = "";
  // A complete link may be pasted instead of its code.
  signIn(/#login=([\w-]+)$/.exec(given)?.[1] ?? given);
});
byId("logout").addEventListener("click", async () => {
  feed.stop();
  await logOut();
  last = null;
  history.clear();
  showSignIn("");
});
listenToTheme(byId("theme"));

const code = codeOfAddress();
if (code) signIn(code);
else if (hasKey()) showRun();
else showSignIn("");
