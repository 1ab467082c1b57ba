// The page's beginning: being let in, then a look at the run every second.

import { byId, say, setText } from "./dom.js";
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

const FORGOTTEN = "This browser is not let in any more: somebody has left here, the run was started anew, or nobody "
  + "looked for twelve hours. The command above prints a new link.";

const history = new History();
const charts = new Charts(history);
const epochs = new Epochs(history);
const dialog = new TableDialog();
let last = null;
let spoken = "";

const feed = new Feed({
  onLook(look, first) {
    history.saw(look, first);
    last = { ...look, lastEpoch: history.lastEpoch };
    show(last);
  },
  onSilence(text) {
    const banner = byId("connection");
    setText(banner, text);
    banner.hidden = false;
    document.body.classList.add("stale");
  },
  onRefused() {
    enter(last ? FORGOTTEN : "");
  },
});

const tables = new Tables(() => follow(), openTable);

/** Look at the tables that are wanted, and closely at the one whose window is open. */
function follow() {
  const query = new URLSearchParams(tables.query);
  if (dialog.name !== null) query.set("table", dialog.name);
  feed.follow(query.toString());
}

function show(look) {
  byId("connection").hidden = true;
  document.body.classList.remove("stale");
  showHead(look);
  showFigures(look);
  showFlow(look, history.committedRate);
  showAttention(look, openTable);
  charts.draw();
  epochs.show();
  tables.show(look);
  showReaders(look);
  showChanges(look, openTable);
  showMessages(look);
  if (look.table) dialog.show(look.table, look);
  tellOfPhases(look);
}

/** Those who hear the page are told of what changed in whole, and not of every second. */
function tellOfPhases(look) {
  const { run, job } = look.status;
  const parked = job.counts?.tables.parked ?? 0;
  const text = `${look.status.pipeline}: ${run?.step ?? "at rest"}${parked ? `, ${parked} parked` : ""}`;
  if (text !== spoken) say(text);
  spoken = text;
}

function openTable(name) {
  const table = tables.reports.get(name) ?? last.parked.find((each) => each.table === name);
  dialog.open(name, last, table);
  follow();
}

/** Show the entrance. */
function enter(text) {
  feed.stop();
  dialog.close();
  byId("view").hidden = true;
  byId("entrance").hidden = false;
  setText(byId("login-error"), text);
  byId("code").focus();
}

/** Show the run. */
function look() {
  byId("entrance").hidden = true;
  byId("view").hidden = false;
  follow();
}

async function letIn(code) {
  try {
    await logIn(code);
  } catch (refused) {
    enter(refused instanceof TypeError ? "The run does not answer." : refused.message);
    return;
  }
  look();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("code");
  const given = field.value.trim();
  field.value = "";
  // A whole link serves as well as its code.
  letIn(/#login=([\w-]+)$/.exec(given)?.[1] ?? given);
});
byId("logout").addEventListener("click", async () => {
  feed.stop();
  await logOut();
  last = null;
  history.clear();
  enter("");
});
listenToTheme(byId("theme"));

const code = codeOfAddress();
if (code) letIn(code);
else if (hasKey()) look();
else enter("");
