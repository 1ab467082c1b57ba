// The looks at the run: server-sent events, read with `fetch`, because EventSource cannot send the key.

import { NotLetInError, ask } from "./session.js";

const AGAIN_MS = 2000;
/** A look comes every second. A connection that is silent for so long is none. */
const SILENT_MS = 15_000;
/** A stream is followed by another one, in which the run keeps this browser's cookie fresh. */
const AGAIN = "again";

export class Feed {
  /** `onLook(look, first)`, `onSilence(text)` and `onRefused()` hear what comes. */
  constructor({ onLook, onSilence, onRefused }) {
    this.onLook = onLook;
    this.onSilence = onSilence;
    this.onRefused = onRefused;
    this.query = "";
    this.stopping = null;
  }

  /** Look at these tables from now on. */
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
        if (await this.read(signal) === AGAIN) continue;
        if (!signal.aborted) this.onSilence("The run has closed the connection: it ends, or has ended. Asking again …");
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof NotLetInError) {
          this.onRefused();
          return;
        }
        this.onSilence(error instanceof TypeError
          ? "The run does not answer: it has ended, or the network is down. Asking again …"
          : error.message);
      }
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  async read(signal) {
    const connection = new AbortController();
    const abort = () => connection.abort();
    signal.addEventListener("abort", abort, { once: true });
    let silence = setTimeout(abort, SILENT_MS);
    try {
      const answer = await ask(`/v1/look?${this.query}`, { signal: connection.signal });
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
          if (lines.includes("event: end")) throw new NotLetInError();
          if (lines.includes(`event: ${AGAIN}`)) return AGAIN;
          const data = lines.find((line) => line.startsWith("data: "));
          if (!data) continue;
          this.onLook(JSON.parse(data.slice(6)), first);
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
