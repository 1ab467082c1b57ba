// The updates from the run: server-sent events, read with `fetch`, because EventSource cannot send the key.

import { NotLoggedInError, request } from "./session.js";

const RETRY_MS = 2000;
/** An update comes every second. A connection without data for this long counts as lost. */
const SILENT_MS = 15_000;
/** The last event of a stream after which the page reconnects; the new answer renews the cookie. */
const RECONNECT = "reconnect";

export class Feed {
  /** Calls `onUpdate(update, first)`, `onSilence(text)` while the run does not answer, and `onRefused()`. */
  constructor({ onUpdate, onSilence, onRefused }) {
    this.onUpdate = onUpdate;
    this.onSilence = onSilence;
    this.onRefused = onRefused;
    this.query = "";
    this.stopping = null;
  }

  /** Request updates with this query from now on. */
  follow(query) {
    this.query = query;
    this.stop();
    this.stopping = new AbortController();
    this.run(this.stopping.signal);
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        if (await this.read(signal) === RECONNECT) continue;
        if (!signal.aborted) this.onSilence("The run has closed the connection: it ends, or has ended. Retrying …");
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof NotLoggedInError) {
          this.onRefused();
          return;
        }
        this.onSilence(error instanceof TypeError
          ? "The run does not answer: it has ended, or the network is down. Retrying …"
          : error.message);
      }
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
    }
  }

  async read(signal) {
    const connection = new AbortController();
    const abort = () => connection.abort();
    signal.addEventListener("abort", abort, { once: true });
    let silence = setTimeout(abort, SILENT_MS);
    try {
      const answer = await request(`/v1/updates?${this.query}`, { signal: connection.signal });
      if (!answer.ok) throw new Error((await answer.json()).text);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      let first = true;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return null;
        clearTimeout(silence);
        silence = setTimeout(abort, SILENT_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          if (signal.aborted) continue;
          const lines = event.split("\n");
          if (lines.includes("event: end")) throw new NotLoggedInError();
          if (lines.includes(`event: ${RECONNECT}`)) return RECONNECT;
          const data = lines.find((line) => line.startsWith("data: "));
          if (!data) continue;
          this.onUpdate(JSON.parse(data.slice(6)), first);
          first = false;
        }
      }
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", abort);
      connection.abort();
    }
  }
}
