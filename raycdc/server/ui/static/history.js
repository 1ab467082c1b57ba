// The recent samples and epochs from the updates, kept for as long as the run keeps them.

const KEPT = { 1: 300, 10: 360, 120: 720 };
const EPOCHS_KEPT = 300;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    /** The time on the run's machine, because the browser's clock may differ. */
    this.now = 0;
    this.series = new Map();
    this.epochs = [];
  }

  /** Add an update. The first update of a connection has the whole history. */
  add(update, first) {
    if (first) this.clear();
    this.now = update.status.at_ms;
    for (const { step_seconds: step, at_ms: times, ...columns } of update.series) {
      const samples = this.series.get(step) ?? [];
      times.forEach((at, n) => samples.push({
        at, read: columns.read_per_second[n], committed: columns.committed_per_second[n], lag: columns.lag_ms[n],
      }));
      this.series.set(step, samples.slice(-(KEPT[step] ?? 300)));
    }
    this.epochs = [...this.epochs, ...update.epochs].slice(-EPOCHS_KEPT);
  }

  get lastEpoch() {
    return this.epochs.at(-1) ?? null;
  }

  /** Rows committed per second, in the newest sample. */
  get committedRate() {
    return this.series.get(1)?.at(-1)?.committed ?? null;
  }
}
