// Draws the charts of a profile from the numbers in the page. Each chart is drawn when its pipeline is opened.
"use strict";

const report = JSON.parse(document.getElementById("report").textContent);
const COLOURS = ["#2f6fdb", "#e3a72f", "#7a4fd0", "#3aa076", "#d0453b", "#4db3c9", "#b5669b", "#8a93a0"];
const HEIGHT = 190;

function fail(text) {
  document.getElementById("failure").textContent = "The charts cannot be drawn: " + text;
  document.body.dataset.failed = text;
}

window.addEventListener("error", (event) => fail(event.message));

// The value below which a part of all values lies.
function quantile(values, part) {
  const sorted = values.filter((value) => value > 0).sort((one, other) => one - other);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : 0;
}

// How fast a sum grew from each moment to the next.
function rates(at, sums, unit) {
  return sums.map((sum, i) => (i && at[i] > at[i - 1] ? (sum - sums[i - 1]) / unit / (at[i] - at[i - 1]) : null));
}

function shown(value) {
  return value == null ? "–" : value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

// One line or area; `own` are the values that the legend shows, where areas lie on top of one another.
function series(label, i, fill, own) {
  const colour = COLOURS[i % COLOURS.length];
  return {
    label,
    stroke: colour,
    fill: fill ? colour : undefined,
    width: fill ? 0.5 : 1.5,
    points: fill ? { show: false } : { size: 4, fill: colour },
    spanGaps: true,
    value: (plot, value, place, at) => shown(own ? own[at] : value),
  };
}

function draw(target, unit, at, lines, most) {
  const options = {
    width: Math.max(320, target.clientWidth),
    height: HEIGHT,
    scales: { x: { time: false }, y: { range: (plot, low, high) => [0, (most || high || 1) * 1.08] } },
    axes: [{ label: "s since the pipeline started", labelSize: 18, size: 34 }, { label: unit, labelSize: 18, size: 58 }],
    series: [{ label: "s", value: (plot, value) => shown(value) }, ...lines.map((line) => line.series)],
  };
  return new uPlot(options, [at, ...lines.map((line) => line.values)], target);
}

// Areas on top of one another: the highest sum is drawn first, the others in front of it.
function stacked(names, columns) {
  const sums = [];
  names.forEach((name, i) => sums.push(columns[i].map((value, at) => value + (i ? sums[i - 1][at] : 0))));
  return names.map((name, i) => ({ series: series(name, i, true, columns[i]), values: sums[i] })).reverse();
}

const CHARTS = {
  steps(target, pipeline) {
    const all = pipeline.arrivals;
    const kept = all.elements.map((count, i) => i).filter((i) => all.elements[i] > 0);
    const per = (column) => kept.map((i) => (1e3 * column[i]) / all.deliveries[i]);
    const waits = per(all.wait_s);
    const steps = per(all.step_s);
    const most = 1.3 * Math.max(quantile(waits, 0.99), quantile(steps, 0.99));
    const lines = [
      { series: series("worked, ms", 0), values: steps },
      { series: series("waited, ms", 1), values: waits },
    ];
    draw(target, "ms per delivery", kept.map((i) => all.at_s[i]), lines, most);
  },
  rate(target, pipeline) {
    const line = pipeline.timeline;
    const lines = [{ series: series("elements/s", 0), values: rates(line.at_s, line.elements, 1) }];
    draw(target, "elements/s", line.at_s, lines);
    if (line.bytes_read.at(-1)) {
      const read = [{ series: series("MB/s read", 3), values: rates(line.at_s, line.bytes_read, 1e6) }];
      draw(target, "MB/s", line.at_s, read);
    }
  },
  memory(target, pipeline) {
    const line = pipeline.timeline;
    const names = Object.keys(line.memory);
    const lines = stacked(names, names.map((name) => line.memory[name].map((nbytes) => nbytes / 1e6)));
    const most = Math.max(...line.used_bytes) / 1e6;
    const limit = Math.max(...line.limit_bytes) / 1e6;
    if (most > limit / 3) {
      const values = line.limit_bytes.map((nbytes) => nbytes / 1e6);
      lines.push({ series: { ...series("limit", 4), dash: [6, 4] }, values });
    }
    draw(target, "MB", line.at_s, lines);
  },
  requests(target, pipeline) {
    const line = pipeline.timeline;
    const lines = [
      { series: series("under way", 0), values: line.in_flight },
      { series: series("waiting", 1), values: line.waiting },
      { series: { ...series("allowed", 4), dash: [6, 4] }, values: line.request_limit },
    ];
    draw(target, "reads", line.at_s, lines);
  },
  processors(target, pipeline) {
    const line = pipeline.timeline;
    const used = [line.loop_cpu_s, line.cpu_s.map((all, i) => Math.max(0, all - line.loop_cpu_s[i])), line.workers_cpu_s];
    const columns = used.map((sums) => rates(line.at_s, sums, 1).map((rate) => Math.max(0, rate || 0)));
    draw(target, "processors", line.at_s, stacked(["stage loop", "other threads", "workers"], columns));
  },
};

function open(details) {
  if (!details.open || details.dataset.drawn) return;
  details.dataset.drawn = "yes";
  const pipeline = report.pipelines[Number(details.dataset.pipeline)];
  for (const chart of details.querySelectorAll(".chart")) {
    CHARTS[chart.dataset.chart](chart.querySelector("div"), pipeline);
  }
}

try {
  for (const details of document.querySelectorAll("details.pipeline")) {
    details.addEventListener("toggle", () => open(details));
    open(details);
  }
  document.body.dataset.ready = String(document.querySelectorAll(".uplot").length);
} catch (error) {
  fail(String(error));
}
