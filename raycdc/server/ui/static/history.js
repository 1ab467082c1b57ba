// What was lately: samples and epochs as looks bring them, kept here for as long as the run keeps them.

const KEPT = { 1: 300, 10: 360, 120: 720 };
const EPOCHS_KEPT = 300;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    /** By the clock of the run's machine: the browser's may be another one. */
    this.now = 0;
    this.series = new Map();
    this.epochs = [];
  }

  /** A look; the first one of a connection has everything. */
  saw(look, first) {
    if (first) this.clear();
    this.now = look.status.at_ms;
    for (const { step_seconds: step, at_ms: times, ...columns } of look.series) {
      const samples = this.series.get(step) ?? [];
      times.forEach((at, n) => samples.push({
        at, read: columns.read_per_second[n], committed: columns.committed_per_second[n], lag: columns.lag_ms[n],
      }));
      this.series.set(step, samples.slice(-(KEPT[step] ?? 300)));
    }
    this.epochs = [...this.epochs, ...look.epochs].slice(-EPOCHS_KEPT);
  }

  get lastEpoch() {
    return this.epochs.at(-1) ?? null;
  }

  /** Rows committed a second, lately. */
  get committedRate() {
    return this.series.get(1)?.at(-1)?.committed ?? null;
  }
}
