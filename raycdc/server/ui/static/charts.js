// Charts of the last minutes, hour or day, in plain SVG. A line has a gap where no sample was received.

import { byId, element, put, setAttribute, setText, shape } from "./dom.js";
import { clock, duration, short } from "./words.js";

const RANGES = [
  { step: 1, name: "5 min", seconds: 300, parts: [0, 0.4, 0.8, 1] },
  { step: 10, name: "1 hour", seconds: 3600, parts: [0, 0.5, 1] },
  { step: 120, name: "24 hours", seconds: 86_400, parts: [0, 0.5, 1] },
];
const rate = (value) => `${short(value).join(" ").trim()} rows/s`;
const CHARTS = [
  {
    title: "Rows per second", text: rate, axis: (value) => short(value).join(" ").trim(), least: 10,
    series: [{ key: "read", name: "read", colour: "first-series" },
      { key: "committed", name: "committed", colour: "second-series" }],
  },
  {
    title: "Lag", text: duration, axis: duration, least: 1000,
    series: [{ key: "lag", name: "lag", colour: "third-series" }],
  },
];
const HEIGHT = 176;
const EDGE = { top: 10, right: 8, bottom: 20, left: 52 };

export class Charts {
  constructor(history) {
    this.history = history;
    this.range = RANGES[0];
    this.charts = CHARTS.map((about) => new Chart(about));
    put(byId("chart-list"), this.charts.map((chart) => chart.box));
    put(byId("ranges"), RANGES.map((range) => element("button", {
      type: "button", "aria-pressed": String(range === this.range), click: () => this.choose(range),
    }, range.name)));
    new ResizeObserver(() => this.draw()).observe(byId("chart-list"));
  }

  choose(range) {
    this.range = range;
    for (const [n, button] of [...byId("ranges").children].entries()) {
      setAttribute(button, "aria-pressed", RANGES[n] === range);
    }
    this.draw();
  }

  draw() {
    const samples = this.history.series.get(this.range.step) ?? [];
    for (const chart of this.charts) chart.draw(samples, this.range, this.history.now);
  }
}

class Chart {
  constructor(about) {
    this.about = about;
    this.cursor = null;
    this.svg = shape("svg", { role: "img", tabindex: 0 });
    this.reading = element("p", { class: "reading" });
    this.box = element("figure", { class: "card chart" },
      element("figcaption", { class: "chart-head" }, element("h3", {}, about.title),
        element("span", { class: "legend" }, about.series.length > 1
          ? about.series.map((each) => element("span", { class: each.colour }, each.name)) : null)),
      this.svg, this.reading);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.at(null));
    this.svg.addEventListener("blur", () => this.at(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  draw(samples, range, now) {
    this.samples = samples;
    this.range = range;
    this.now = now;
    const width = Math.max(160, this.svg.clientWidth || this.box.clientWidth - 36);
    const [first, last] = this.span();
    const peak = Math.max(this.about.least, ...samples.flatMap((sample) =>
      this.about.series.map(({ key }) => sample[key] ?? 0)));
    const top = rounded(peak, this.about.axis === duration);
    this.x = (at) => EDGE.left + ((at - first) / (last - first)) * (width - EDGE.left - EDGE.right);
    this.y = (value) => HEIGHT - EDGE.bottom - (value / top) * (HEIGHT - EDGE.top - EDGE.bottom);
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = [];
    for (const value of [0, top / 2, top]) {
      const y = this.y(value);
      parts.push(shape("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }));
      parts.push(shape("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, value ? this.about.axis(value) : "0"));
    }
    for (const part of range.parts) {
      const ago = range.seconds * (1 - part);
      parts.push(shape("text", {
        x: EDGE.left + part * (width - EDGE.left - EDGE.right), y: HEIGHT - 4,
        "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle",
      }, ago ? `${duration(ago * 1000)} ago` : "now"));
    }
    for (const { key, colour } of this.about.series) {
      for (const run of runs(samples, key, range.step, first)) {
        const line = run.map((sample) => `${this.x(sample.at).toFixed(1)},${this.y(sample[key]).toFixed(1)}`).join(" L");
        const floor = this.y(0);
        parts.push(shape("path", {
          class: `area ${colour}`,
          d: `M${this.x(run[0].at).toFixed(1)},${floor} L${line} L${this.x(run.at(-1).at).toFixed(1)},${floor} Z`,
        }));
        parts.push(shape("path", { class: `curve ${colour}`, d: `M${line}${run.length === 1 ? " h1" : ""}` }));
      }
    }
    this.line = shape("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.line);
    setAttribute(this.svg, "aria-label", this.description());
    this.at(this.cursor);
  }

  /** The first and the last time of the axis. */
  span() {
    const last = Math.max(this.samples.at(-1)?.at ?? 0, this.now - this.range.step * 2000);
    return [last - this.range.seconds * 1000, last];
  }

  /** The chart in words, for screen readers. */
  description() {
    const parts = this.about.series.map(({ key, name }) => {
      const known = this.samples.map((sample) => sample[key]).filter((value) => value !== null);
      return known.length ? `${name}: ${this.about.text(known.at(-1))} now, ${this.about.text(Math.max(...known))} at most`
        : `${name}: nothing yet`;
    });
    return `${this.about.title}, last ${this.range.name}. ${parts.join("; ")}. Arrow keys read its values.`;
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const [first, last] = this.span();
    const across = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    this.at(first + across * (last - first));
  }

  key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !this.samples.length) return;
    event.preventDefault();
    const now = this.cursor === null ? this.samples.length - 1 : this.nearest(this.cursor) + way;
    this.at(this.samples[Math.max(0, Math.min(this.samples.length - 1, now))].at);
  }

  nearest(at) {
    let best = 0;
    this.samples.forEach((sample, n) => {
      if (Math.abs(sample.at - at) < Math.abs(this.samples[best].at - at)) best = n;
    });
    return best;
  }

  /** Show the values of the sample at this time; of the newest sample for null. */
  at(time) {
    this.cursor = time;
    if (!this.line) return;
    const sample = this.samples.length ? this.samples[time === null ? this.samples.length - 1 : this.nearest(time)] : null;
    this.line.setAttribute("visibility", time === null || !sample ? "hidden" : "visible");
    if (!sample) {
      setText(this.reading, "Nothing to draw yet.");
      return;
    }
    this.line.setAttribute("x1", this.x(sample.at));
    this.line.setAttribute("x2", this.x(sample.at));
    const values = this.about.series.map(({ key, name }) =>
      `${this.about.series.length > 1 ? `${name} ` : ""}${sample[key] === null ? "unknown" : this.about.text(sample[key])}`);
    setText(this.reading, `${time === null ? "Now" : clock(sample.at)}: ${values.join(", ")}`);
  }
}

/** The runs of consecutive samples with a known value. */
function runs(samples, key, step, first) {
  const found = [];
  let run = [];
  let before = null;
  for (const sample of samples) {
    if (sample.at < first) continue;
    if (sample[key] === null || (before !== null && sample.at - before > step * 3000)) {
      if (run.length) found.push(run);
      run = [];
    }
    if (sample[key] !== null) run.push(sample);
    before = sample.at;
  }
  if (run.length) found.push(run);
  return found;
}

const ROUND_MS = [1e3, 2e3, 4e3, 1e4, 2e4, 6e4, 12e4, 24e4, 6e5, 12e5, 24e5, 36e5, 72e5, 144e5, 288e5, 864e5, 1728e5];

/** A round number for the end of an axis that includes `peak`. */
function rounded(peak, isTime) {
  if (isTime && peak <= ROUND_MS.at(-1)) return ROUND_MS.find((each) => each >= peak);
  const size = 10 ** Math.floor(Math.log10(peak));
  return [1, 2, 4, 6, 8, 10].find((each) => each * size >= peak) * size;
}
