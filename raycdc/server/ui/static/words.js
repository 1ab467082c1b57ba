// Formats numbers for people, like the screens of the command line.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const brief = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** 1,234 */
export const number = (value) => whole.format(value);

/** 1 row, 2,000 rows */
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A number of at most five characters with its unit, as [number, unit]: 12.3 M is ["12.3", "M"]. */
export function short(value) {
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(value) >= factor) return [brief.format(value / (unit === "k" ? 1e3 : factor)), unit];
  }
  return [value < 10 && value > 0 ? brief.format(value) : whole.format(value), ""];
}

/** A duration as [number, unit]: 340 ms, 2.1 s, 4 min, 3 h */
export function durationParts(ms) {
  if (ms < 1000) return [whole.format(Math.max(0, ms)), "ms"];
  if (ms < 120_000) return [brief.format(ms / 1000), "s"];
  if (ms < 7_200_000) return [whole.format(ms / 60_000), "min"];
  if (ms < 172_800_000) return [whole.format(ms / 3_600_000), "h"];
  return [whole.format(ms / 86_400_000), "days"];
}

/** 340 ms, 2.1 s, 4 min, 3 h; no line break between number and unit. */
export const duration = (ms) => durationParts(ms).join("\u00a0");

/** 3.4 MiB */
export function size(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${brief.format(bytes / factor)}\u00a0${unit}`;
  }
  return counted(bytes, "byte");
}

/** The time of day in this browser's time zone; with the date if it is not today's. */
export function clock(ms) {
  const then = new Date(ms);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date().toDateString() ? time : `${then.toLocaleDateString("en-CA")} ${time}`;
}

/** The CSS class with the colour of a phase. */
export const phaseClass = (phase) => ({
  stream: "good", snapshot: "busy", pending: "busy", resuming: "busy", new: "busy", parked: "bad", paused: "wait",
}[phase] ?? "");
