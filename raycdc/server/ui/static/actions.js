// The actions on one table: the commands of `raycdc tables`, and `raycdc verify`. Each asks for confirmation, and shows
// its result.

import { element, put } from "./dom.js";
import { NotLoggedInError, post, request } from "./session.js";
import { counted, number } from "./words.js";

const POLL_MS = 1000;

const ACTIONS = {
  pause: {
    name: "Pause", phases: ["pending", "snapshot", "stream", "resuming", "new"],
    means: (table) => `${table} is not followed until it is resumed, and its target keeps its rows. The readers start `
      + "again from the last sealed epoch, so the other tables pause for some seconds.",
  },
  resume: {
    name: "Resume", phases: ["paused", "parked"],
    means: (table) => `${table} goes on from where it was left. If that is not possible, its target is emptied and the `
      + "table is read again; the answer says why.",
  },
  resnapshot: {
    name: "Resnapshot", phases: ["pending", "snapshot", "stream", "resuming", "new", "paused", "parked"], danger: true,
    means: (table) => `The target of ${table} is emptied, and the whole table is read again. Until that is done the `
      + "target lacks rows. Tables that share the target are read again with it.",
  },
};

const VERIFY = {
  name: "Verify",
  means: (table) => `${table} and its target are read completely and compared, while the run goes on. Nothing is changed, `
    + "but both servers have the load of reading.",
};

/** The buttons of a table's window, and the element that shows their results. */
export class Actions {
  constructor() {
    this.place = element("div", { class: "acting" });
    this.buttons = element("div", { class: "actions" });
    this.answer = element("div", { "aria-live": "polite" });
    this.place.append(this.buttons, this.answer);
    this.shown = "";
  }

  /** Show the buttons that apply to the table. The result of another table's action is removed. */
  show(table, may) {
    const key = `${table.table}\n${table.phase}\n${may.act}\n${may.verify}`;
    if (this.shown === key) return;
    const other = this.shown.split("\n")[0] !== table.table;
    this.shown = key;
    this.place.hidden = !may.act;
    if (other) put(this.answer);
    const held = this.buttons.contains(document.activeElement) ? document.activeElement.textContent : null;
    const possible = Object.entries(ACTIONS).filter(([, action]) => action.phases.includes(table.phase));
    put(this.buttons, possible.map(([name, action]) => this.button(action, table.table, () => this.command(name, table.table))),
      may.verify ? this.button(VERIFY, table.table, () => this.verify(table.table)) : null);
    [...this.buttons.children].find((button) => button.textContent === held)?.focus();
  }

  button(action, table, act) {
    const button = element("button", { type: "button", class: action.danger ? "danger" : null }, action.name);
    button.addEventListener("click", () => this.confirm(action, table, act, button));
    return button;
  }

  confirm(action, table, act, button) {
    const yes = element("button", {
      type: "button", class: action.danger ? "danger" : "primary", click: () => this.run(act),
    }, `${action.name} ${table}`);
    const no = element("button", {
      type: "button",
      click: () => {
        put(this.answer);
        button.focus();
      },
    }, "Cancel");
    put(this.answer, element("div", { class: "confirm" }, element("p", {}, action.means(table)),
      element("div", { class: "actions" }, yes, no)));
    yes.focus();
  }

  async run(act) {
    try {
      await act();
    } catch (error) {
      this.say(error instanceof NotLoggedInError ? "This browser is not signed in any more: open a new link."
        : error instanceof TypeError ? "The run does not answer." : error.message, "bad");
    }
  }

  say(text, kind = "") {
    put(this.answer, element("p", { class: `answer ${kind}` }, text));
  }

  async command(action, table) {
    this.say(`${ACTIONS[action].name}: requested …`);
    const [ok, answer] = await post("/v1/commands", { action, table });
    if (!ok) throw new Error(answer.text);
    await this.until(table, `/v1/commands/${answer.id}`, (status) => {
      if (status.state === "refused" || status.state === "parked") this.say(status.text, "bad");
      else if (status.state === "done") this.say(`Done: ${status.text}.`, "good");
      else if (status.state === "acting") this.say(`${status.text}. Its epoch is not in the sink yet …`);
      else this.say(`${ACTIONS[action].name}: accepted, not started yet …`);
      return ["refused", "parked", "done"].includes(status.state);
    });
  }

  async verify(table) {
    this.say("Verify: reading both sides …");
    const [ok, answer] = await post("/v1/verifications", { table });
    if (!ok) throw new Error(answer.text);
    await this.until(table, `/v1/verifications/${answer.id}`, (status) => {
      if (status.state === "failed") this.say(status.text, "bad");
      else if (status.state === "done") this.compared(status.results);
      return status.state !== "running";
    });
  }

  compared(results) {
    put(this.answer, results.map((result) => element("p", {
      class: `answer ${{ equal: "good", different: "bad" }[result.verdict] ?? ""}`,
    }, comparison(result))));
  }

  /** Poll `path` until `isDone` returns true for the answer, or another table is shown. */
  async until(table, path, isDone) {
    for (;;) {
      const answer = await request(path);
      const status = await answer.json();
      if (!answer.ok) throw new Error(status.text);
      if (this.shown.split("\n")[0] !== table || isDone(status)) return;
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    }
  }
}

function comparison(result) {
  const both = `${result.target}: ${counted(result.source_rows, "row")} of the source, ${number(result.target_rows)} of the target`;
  if (result.verdict === "not compared") return `${result.target} was not compared: ${result.reason}`;
  const parts = [["missing", "missing in the target"], ["extra", "only in the target"], ["changed", "with other values"],
    ["behind", "not in the target yet"], ["kept_changing", "changing too often to tell"]]
    .filter(([key]) => result[key]).map(([key, words]) => `${number(result[key])} ${words}`);
  return `${both}: ${result.verdict === "equal" ? "equal" : result.verdict}${parts.length ? ` (${parts.join(", ")})` : ""}.`;
}
