"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
/// An element; text is text, never markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const run_colour = i => colour("--c" + i % 8);

// ---------------------------------------------------------------------------- numbers

function bytes_of(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
}
function columns_of(packed) {
  const columns = {};
  for (const [name, text] of Object.entries(packed.f64 || {})) columns[name] = new Float64Array(bytes_of(text));
  for (const [name, text] of Object.entries(packed.f32 || {})) columns[name] = new Float32Array(bytes_of(text));
  return columns;
}
const known = x => x !== null && x !== undefined && !Number.isNaN(x);
/// Few digits, for axes and tables: "12.3k", "4.56", "1.2e-4".
function short(x, digits = 4) {
  if (!known(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (!Number.isFinite(x)) return String(x);
  if (size >= 1e4) {
    for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit) return trim((x / unit).toPrecision(Math.max(digits - 1, 3))) + name;
  }
  if (size < 1e-3) return trim_exponent(x.toExponential(digits - 2));
  return trim(x.toPrecision(digits));
}
const trim = text => text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
const trim_exponent = text => text.replace(/\.?0+e/, "e");
function amount(bytes) {
  if (!known(bytes)) return "–";
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (bytes >= unit) return (bytes / unit).toPrecision(3) + " " + name;
  return bytes + " B";
}
function duration(seconds) {
  if (!known(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return s + " s";
  if (s < 600) return Math.floor(s / 60) + " min " + s % 60 + " s";
  if (s < 3600) return Math.round(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}
const date = seconds => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
function last_of(column) {
  for (let i = (column || []).length; i-- > 0;) if (known(column[i])) return column[i];
  return undefined;
}
function least_of(column) {
  let least;
  for (const x of column || []) if (known(x) && (least === undefined || x < least)) least = x;
  return least;
}
function median_of(column) {
  const sorted = Float64Array.from(column || []).filter(known).sort();
  return sorted.length ? sorted[(sorted.length - 1) >> 1] : undefined;
}

// ---------------------------------------------------------------------------- runs

const runs = data.runs.map((run, index) => {
  const train = columns_of(run.train);
  const begun = run.start && run.start.begun || (train.time ? train.time[0] : 0);
  return { ...run, index, train, begun, shown: true,
    evals: Object.fromEntries(Object.entries(run.eval || {}).map(([split, packed]) => [split, columns_of(packed)])),
    taskcurves: Object.fromEntries(Object.entries(run.tasks || {}).map(([task, packed]) => [task, columns_of(packed)])),
    gpus: run.gpu ? columns_of(run.gpu) : null };
});
const several = runs.length > 1;
const view = { axis: "iteration", smoothing: 0, log: false };

/// The x values of a run's rows on the chosen axis.
function x_of(run, columns) {
  if (view.axis === "tokens" && columns.tokens) return columns.tokens;
  if (view.axis === "hours" && columns.time) {
    if (!columns.hours) columns.hours = columns.time.map(t => (t - run.begun) / 3600);
    return columns.hours;
  }
  return view.axis === "iteration" ? columns.iteration : null;
}
/// An iteration as an x value: by the training line that is next to it.
function place_of(run, iteration, time) {
  if (view.axis === "iteration") return iteration;
  if (view.axis === "hours") return known(time) ? (time - run.begun) / 3600 : null;
  const x = run.train.tokens;
  if (!x) return null;
  const i = lower_bound(run.train.iteration, iteration);
  return x[Math.min(i, x.length - 1)];
}
function lower_bound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const mid = (low + high) >> 1; if (sorted[mid] < value) low = mid + 1; else high = mid; }
  return low;
}
function state_of(run) {
  if (run.stop) return { text: run.stop.reason, bad: run.stop.exit_code !== 0 && run.stop.exit_code !== 75 };
  return run.start ? { text: "no end recorded", bad: false } : { text: "log", bad: false };
}
function figures_of(run) {
  const t = run.train, memory = run.memory || {};
  return { iteration: last_of(t.iteration), total: run.start && run.start.length && run.start.length.iterations,
    loss: last_of(t.loss), best: least_of(t.loss), valid: last_of(run.evals.valid && run.evals.valid.loss),
    ms: median_of(t.ms), tokens: median_of(t.tokens_per_second), tflops: median_of(t.tflops), mfu: median_of(t.mfu),
    memory: memory.gpu_bytes || memory.peak_bytes };
}
for (const run of runs) run.figures = figures_of(run);

// ---------------------------------------------------------------------------- curves

/// An exponential moving average without its beginning's bias; gaps stay gaps.
function smooth(values, weight) {
  if (weight <= 0) return values;
  const result = new Float32Array(values.length);
  let mean = 0, correction = 1;
  for (let i = 0; i < values.length; ++i) {
    if (!Number.isFinite(values[i])) { result[i] = NaN; continue; }
    mean = weight * mean + (1 - weight) * values[i];
    correction *= weight;
    result[i] = mean / (1 - correction);
  }
  return result;
}
/// What can be seen of a curve in [low, high]: lowest and highest value of each pixel column.
function visible(x, y, low, high, pixels) {
  const first = Math.max(0, lower_bound(x, low) - 1), last = Math.min(x.length, lower_bound(x, high) + 2);
  const xs = [], ys = [];
  const push = i => { if (xs.length && x[i] <= xs[xs.length - 1]) return; xs.push(x[i]); ys.push(Number.isFinite(y[i]) ? y[i] : null); };
  if (last - first <= 4 * pixels) {
    for (let i = first; i < last; ++i) push(i);
    return [xs, ys];
  }
  const per = (last - first) / (2 * pixels);
  for (let b = first; b < last; b += per) {
    let least = -1, most = -1;
    const end = Math.min(last, Math.ceil(b + per));
    for (let i = Math.floor(b); i < end; ++i) {
      const value = y[i];
      if (!(Math.abs(value) < Infinity)) continue;
      if (least < 0 || value < y[least]) least = i;
      if (most < 0 || value > y[most]) most = i;
    }
    if (least < 0) { push(Math.floor(b)); continue; }
    push(Math.min(least, most));
    if (least !== most) push(Math.max(least, most));
  }
  return [xs, ys];
}
const mark_looks = {
  checkpoint: { sign: "▲", colour: "--good", name: "checkpoint" }, restart: { sign: "┆", colour: "--accent", name: "restart" },
  skipped: { sign: "●", colour: "--warn", name: "skipped update" }, nan: { sign: "●", colour: "--bad", name: "NaN loss" },
  warning: { sign: "◆", colour: "--warn", name: "warning" }, skip: { sign: "■", colour: "--c4", name: "data skipped" },
  trace: { sign: "▬", colour: "--c5", name: "timeline recorded" } };

const charts = [];
let syncing = false;
function set_range(from, min, max) {
  if (syncing) return;
  syncing = true;
  for (const chart of charts) chart.show(min, max);
  syncing = false;
}
class Chart {
  constructor(parent, title, unit, lines, options = {}) {
    Object.assign(this, { title, unit, lines, options, plot: null });
    this.now = make("span", { class: "now" });
    this.holder = make("div", { class: "plot" });
    this.keys = make("div", { class: "keys" });
    this.card = make("div", { class: "card" + (options.big ? " big" : "") },
      make("div", { class: "head" }, make("h2", {}, title, unit ? make("small", {}, unit) : null), this.now), this.holder, this.keys);
    parent.append(this.card);
    charts.push(this);
  }
  /// The curves to draw: {name, x, y, colour, width, dash, points}.
  curves() {
    const result = [];
    for (const run of runs) {
      if (!run.shown) continue;
      for (const line of this.lines(run)) {
        const x = x_of(run, line.columns), raw = line.columns[line.column];
        if (!x || !raw) continue;
        let y = raw;
        if (this.options.scale) y = raw.map(value => value * this.options.scale);
        const base = { run, x, name: [several ? run.name : null, line.name].filter(Boolean).join(" · ") || this.title, ...line,
          colour: line.colour ? colour(line.colour) : run_colour(several ? run.index : line.tone || 0) };
        if (view.smoothing > 0 && this.options.smooth && !line.points) {
          result.push({ ...base, y, faint: true });
          result.push({ ...base, y: smooth(y, 1 - Math.pow(10, -view.smoothing / 33)) });
        } else result.push({ ...base, y });
      }
    }
    return result;
  }
  draw() {
    if (this.plot) { this.plot.destroy(); this.plot = null; }
    this.all = this.curves();
    this.card.hidden = this.all.length === 0;
    if (this.card.hidden) return;
    let low = Infinity, high = -Infinity;
    for (const curve of this.all) { low = Math.min(low, curve.x[0]); high = Math.max(high, curve.x[curve.x.length - 1]); }
    if (low === high) { low -= 1; high += 1; }
    this.full = [low, high];
    const soft = colour("--soft"), grid = { stroke: colour("--grid"), width: 1 }, font = "12px system-ui, sans-serif";
    const labelled = this.options.big && several && this.all.filter(c => !c.points && !c.faint).length <= 12;
    const axis = { stroke: soft, grid, ticks: { show: false }, font, labelFont: font };
    const log = this.options.log && view.log;
    const unit_of_x = { iteration: "iteration", tokens: "tokens", hours: "hours" }[view.axis];
    const series = [{}].concat(this.all.map(curve => ({
      label: curve.name, stroke: curve.faint ? curve.colour + "40" : curve.colour, width: curve.faint ? 1 : curve.width || 1.6,
      dash: curve.dash, points: curve.points ? { show: true, size: 6, fill: colour("--card"), width: 1.6 } : { show: false } })));
    const format = values => values.map(v => v === null ? "" : (this.options.format || short)(v, 4));
    this.plot = new uPlot({
      width: this.holder.clientWidth || 420, height: this.options.big ? 300 : 200, padding: [10, labelled ? 124 : 24, 0, 0],
      series, scales: { x: { time: false, range: (u, min, max) => min === null ? this.full : [min, max] }, y: log ? { distr: 3 } :
        { range: (u, min, max) => this.range_of_y(min, max) } },
      axes: [{ ...axis, values: (u, v) => v.map(x => short(x, 5)), label: unit_of_x, labelSize: 18, size: 28, gap: 4 },
             { ...axis, values: (u, v) => format(v), size: 58, gap: 6 }],
      cursor: { drag: { x: true, y: false }, sync: { key: "trireme", scales: ["x", null] }, points: { size: 7, width: 1.5 } },
      legend: { show: false },
      hooks: { setSelect: [u => { if (u.select.width > 3) set_range(this, u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); }],
        setCursor: [u => this.hover(u)], draw: [u => { this.draw_restarts(u); this.draw_marks(u); if (labelled) this.draw_labels(u); }] },
    }, this.table(low, high), this.holder);
    this.plot.over.addEventListener("dblclick", () => set_range(null, null, null));
    this.plot.over.addEventListener("mouseleave", () => { at("tip").hidden = true; });
    const latest = this.all.filter(c => !c.faint);
    this.now.textContent = several || latest.length === 0 ? "" : latest.slice(0, 3).map(c => (latest.length > 1 ? (c.line_name || c.name) + " " : "") + (this.options.format || short)(last_of(c.y))).join(" · ");
    this.legend();
  }
  range_of_y(min, max) {
    if (min === null) return [0, 1];
    if (this.options.zero) min = Math.min(0, min);
    if (this.options.most !== undefined) return [min, Math.max(max, this.options.most)];
    const pad = (max - min) * .06 || Math.abs(max) * .1 || 1;
    return [this.options.zero && min === 0 ? 0 : min - pad, max + pad];
  }
  table(low, high) {
    const pixels = Math.max(200, this.holder.clientWidth || 420);
    const log = this.options.log && view.log;
    const tables = this.all.map(curve => {
      const [xs, ys] = curve.points && curve.x.length < 4000 ? [Array.from(curve.x), Array.from(curve.y, v => Number.isFinite(v) ? v : null)] : visible(curve.x, curve.y, low, high, pixels);
      return [xs, log ? ys.map(y => y > 0 ? y : null) : ys];
    });
    return tables.length === 1 ? tables[0] : uPlot.join(tables, tables.map(() => [2, 2]));
  }
  show(min, max) {
    if (!this.plot) return;
    const [low, high] = min === null ? this.full : [min, max];
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.plot.setData(this.table(low, high), false);
    this.plot.setScale("x", { min: low, max: high });
  }
  hover(u) {
    const tip = at("tip"), left = u.cursor.left;
    if (left === null || left < 0 || !u.over.matches(":hover")) return;
    const x = u.posToVal(left, "x"), rows = [];
    for (const curve of this.all) {
      if (curve.faint) continue;
      let i = lower_bound(curve.x, x);
      if (i > 0 && (i === curve.x.length || x - curve.x[i - 1] < curve.x[i] - x)) --i;
      const exact = curve.y[i];
      rows.push(make("div", { class: "row" }, make("span", {}, make("i", { class: "swatch", style: { background: curve.colour } }), curve.name),
        make("b", {}, (this.options.format || short)(exact, 6))));
    }
    const near = [];
    for (const run of runs) if (run.shown) for (const mark of run.marks) {
      const place = place_of(run, mark.iteration, mark.time);
      if (place !== null && Math.abs(u.valToPos(place, "x") - left) < 5 && mark_looks[mark.kind])
        near.push(make("div", { class: "soft" }, mark_looks[mark.kind].sign + " " + mark.text));
    }
    const label = view.axis === "iteration" ? "iteration " + Math.round(x).toLocaleString("en") : view.axis === "tokens" ? short(x, 5) + " tokens" : x.toFixed(2) + " h";
    tip.replaceChildren(make("div", { class: "soft" }, label), ...rows.slice(0, 14), ...near.slice(0, 4));
    show_tip(u.over.getBoundingClientRect().left + left, u.over.getBoundingClientRect().top + u.cursor.top);
  }
  marks() {
    return runs.filter(run => run.shown).flatMap(run => run.marks.map(mark => ({ ...mark, place: place_of(run, mark.iteration, mark.time) })))
      .filter(mark => mark.place !== null && mark_looks[mark.kind]);
  }
  draw_restarts(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = colour("--accent"); ctx.globalAlpha = .55; ctx.lineWidth = devicePixelRatio; ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const mark of this.marks()) {
      if (mark.kind !== "restart") continue;
      const x = u.valToPos(mark.place, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }
  draw_marks(u) {
    const { ctx, bbox } = u, seen = {};
    ctx.save();
    ctx.font = 9 * devicePixelRatio + "px system-ui, sans-serif"; ctx.textAlign = "center";
    for (const mark of this.marks()) {
      if (mark.kind === "restart") continue;
      const x = u.valToPos(mark.place, "x", true), look = mark_looks[mark.kind], bottom = mark.kind === "checkpoint" || mark.kind === "trace";
      const slot = mark.kind + Math.round(x / (3 * devicePixelRatio));
      if (seen[slot] || x < bbox.left || x > bbox.left + bbox.width) continue;
      seen[slot] = true;
      ctx.fillStyle = colour(look.colour);
      ctx.fillText(look.sign, x, bottom ? bbox.top + bbox.height - 2 * devicePixelRatio : bbox.top + 9 * devicePixelRatio);
    }
    ctx.restore();
  }
  /// The names of runs at the ends of their curves.
  draw_labels(u) {
    const { ctx, bbox } = u, gap = 14 * devicePixelRatio;
    ctx.save();
    ctx.textAlign = "left"; ctx.font = 12 * devicePixelRatio + "px system-ui, sans-serif"; ctx.textBaseline = "middle";
    const ends = this.all.map((curve, i) => ({ curve, y: last_of(u.data[i + 1]) })).filter(e => !e.curve.faint && !e.curve.points && known(e.y))
      .map(e => ({ ...e, at: u.valToPos(e.y, "y", true) })).sort((a, b) => a.at - b.at);
    // Not over one another, and not below the chart.
    ends.forEach((end, i) => { if (i > 0) end.at = Math.max(end.at, ends[i - 1].at + gap); });
    const over = ends.length ? ends[ends.length - 1].at - (bbox.top + bbox.height - gap / 2) : 0;
    if (over > 0) for (let i = ends.length, limit = Infinity; i-- > 0;) { ends[i].at = Math.min(ends[i].at, i === ends.length - 1 ? ends[i].at - over : limit - gap); limit = ends[i].at; }
    for (const end of ends) {
      const y = end.at;
      ctx.fillStyle = end.curve.colour;
      const text = end.curve.run.name;
      ctx.fillText(text.length > 16 ? "…" + text.slice(-15) : text, bbox.left + bbox.width + 6 * devicePixelRatio, y);
    }
    ctx.restore();
  }
  legend() {
    const items = [];
    const kinds = new Map();
    for (const curve of this.all) if (!curve.faint && curve.line_name) kinds.set(curve.line_name, curve);
    if (kinds.size > 1 || (several && kinds.size > 0)) for (const [name, curve] of kinds)
      items.push(make("span", { class: "key" }, several ? make("u", {}, curve.points ? "○" : curve.dash ? "╌" : "—") : make("i", { style: { background: curve.colour } }), name));
    if (this.options.big) {
      const there = new Set(runs.filter(run => run.shown).flatMap(run => run.marks.map(mark => mark.kind)));
      for (const [kind, look] of Object.entries(mark_looks)) if (there.has(kind))
        items.push(make("span", { class: "key" }, make("u", { style: { color: colour(look.colour) } }, look.sign), look.name));
      items.push(make("span", { class: "key" }, "drag to zoom, double click to reset"));
    }
    this.keys.replaceChildren(...items);
  }
}
function show_tip(x, y) {
  const tip = at("tip");
  tip.hidden = false;
  const wide = tip.offsetWidth, high = tip.offsetHeight;
  tip.style.left = Math.max(4, x + 16 + wide > innerWidth ? x - wide - 16 : x + 16) + "px";
  tip.style.top = Math.max(4, Math.min(innerHeight - high - 4, y + 12)) + "px";
}

function make_charts() {
  const parent = at("charts");
  const train = (column, more = {}) => run => [{ columns: run.train, column, ...more }];
  const percent = (x, digits) => known(x) ? short(x * 100, Math.min(digits || 3, 4)) + "%" : "–";
  const varies = column => runs.some(run => { const c = run.train[column]; if (!c) return false; for (const x of c) if (x !== c[0] && known(x)) return true; return false; });
  new Chart(parent, "Loss", "", run => [{ columns: run.train, column: "loss", name: several ? "" : "training", line_name: "training" }]
    .concat(Object.entries(run.evals).map(([split, columns], i) => ({ columns, column: "loss", name: split === "valid" ? "validation" : split,
      line_name: split === "valid" ? "validation" : split, points: true, tone: 1 + i, width: several ? 1 : 1.4, dash: [3, 3] }))), { big: true, smooth: true, log: true });
  if (runs.some(run => run.train.sentence_loss)) new Chart(parent, "Loss of the sentence labels", "", train("sentence_loss"), { smooth: true, log: true });
  new Chart(parent, "Learning rate", "", train("learning_rate"), { zero: true, format: x => known(x) ? short(x, 3) : "–" });
  new Chart(parent, "Gradient norm", "before clipping", train("grad_norm"), { smooth: true, zero: true });
  if (runs.some(run => run.train.parameter_norm)) new Chart(parent, "Parameter norm", "", train("parameter_norm"), { smooth: false });
  new Chart(parent, "Throughput", "tokens/s", train("tokens_per_second"), { zero: true, smooth: true });
  new Chart(parent, "Iteration time", "ms", train("ms"), { zero: true, smooth: true });
  if (runs.some(run => run.train.mfu)) new Chart(parent, "MFU", "share of the peak", train("mfu"), { zero: true, smooth: true, format: percent });
  else new Chart(parent, "Model FLOP/s", "TFLOP/s per rank", train("tflops"), { zero: true, smooth: true });
  if (varies("loss_scale")) new Chart(parent, "Loss scale", "", train("loss_scale"), { zero: true });
  if (varies("global_batch")) new Chart(parent, "Global batch", "samples", train("global_batch"), { zero: true });
  if (runs.some(run => run.gpus)) {
    const gpu = columns => run => run.gpus ? columns.map(([column, name, more]) => ({ columns: run.gpus, column, name, line_name: name, ...more })) : [];
    new Chart(parent, "GPU use", "% of the time with kernels", gpu([["mean", "mean", {}], ["lowest", "lowest GPU", { dash: [4, 3], width: 1, tone: 1 }]]), { zero: true, most: 100 });
    new Chart(parent, "GPU power", "W of all GPUs", gpu([["power", "", {}]]), { zero: true });
    new Chart(parent, "GPU memory", "GiB on the GPU with the most in use", gpu([["memory", "", {}]]), { zero: true, scale: 1 / 2 ** 30 });
  }
  const tasks = new Set(runs.flatMap(run => Object.keys(run.taskcurves)));
  for (const task of tasks) new Chart(parent, task, "task", run => run.taskcurves[task] ? [{ columns: run.taskcurves[task], column: "value", points: true }] : [], {});
}
function draw_charts() { for (const chart of charts) chart.draw(); }

// ---------------------------------------------------------------------------- tiles and tables

function tile(name, value, unit, note, kind) {
  return make("div", { class: "tile" }, make("div", { class: "name" }, name), make("div", { class: "value" }, value, unit ? make("small", {}, unit) : null),
    typeof note === "string" ? make("div", { class: "note " + (kind || ""), title: note }, note) : note || null);
}
function make_tiles() {
  if (several) return;
  const run = runs[0], f = run.figures, state = state_of(run), start = run.start || {};
  const done = known(f.total) && f.total > 0 ? f.iteration / f.total : null;
  const layout = start.layout ? `tensor ${start.layout.tensor} × pipeline ${start.layout.pipeline} × data ${start.layout.data}` : "";
  const tiles = [
    tile("Iteration", known(f.iteration) ? f.iteration >= 1e6 ? short(f.iteration, 5) : f.iteration.toLocaleString("en") : "–", known(f.total) ? "of " + (f.total >= 1e6 ? short(f.total, 3) : f.total.toLocaleString("en")) : "",
      done === null ? null : make("div", {}, make("div", { class: "progress" }, make("b", { style: { width: Math.min(100, 100 * done) + "%" } })),
        make("div", { class: "note " + (state.bad ? "bad" : state.text === "finished" ? "good" : ""), title: state.text }, state.text))),
    tile("Loss", short(f.loss, 5), "", "lowest " + short(f.best, 5)),
  ];
  if (known(f.valid)) tiles.push(tile("Validation loss", short(f.valid, 5), "", "perplexity " + short(Math.exp(Math.min(20, f.valid)), 4)));
  tiles.push(tile("Throughput", short(f.tokens, 4), "tokens/s", short(f.ms, 4) + " ms an iteration"));
  tiles.push(known(f.mfu) ? tile("MFU", (100 * f.mfu).toFixed(1), "%", short(f.tflops, 4) + " TFLOP/s per rank") : tile("Model FLOP/s", short(f.tflops, 3), "TFLOP/s", "per rank"));
  if (known(f.memory)) tiles.push(tile("Memory", amount(f.memory).split(" ")[0], amount(f.memory).split(" ")[1], "planned " + amount(run.memory.planned_bytes)));
  if (start.parameters) tiles.push(tile("Model", short(start.parameters, 3).replace("G", "B"), "params", start.model && start.model.layers ? `${start.model.layers} layers, width ${start.model.hidden}` : ""));
  if (layout) tiles.push(tile("Ranks", String(start.layout.tensor * start.layout.pipeline * start.layout.data), start.device || "", layout));
  if (run.begun) tiles.push(tile("Time", duration(run.updated - run.begun), "", "from " + date(run.begun)));
  at("tiles").replaceChildren(...tiles);
}
/// A table that sorts by the column that is clicked on; rows are lists of {text, value, class}.
function make_table(columns, rows) {
  const body = make("tbody"), heads = columns.map((column, i) => make("th", { class: column.left ? "left" : "", scope: "col", tabindex: "0" }, column.name));
  let sorted = -1, down = false;
  const fill = () => body.replaceChildren(...rows.map(row => make("tr", {}, ...row.map((cell, i) =>
    make("td", { class: [cell.class || "", columns[i].left ? "left" : ""].join(" ") }, cell.colour ? make("i", { class: "swatch", style: { background: cell.colour } }) : null, cell.text)))));
  const sort = i => {
    down = sorted === i ? !down : false; sorted = i;
    const number = row => known(row[i].value) ? row[i].value : row[i].text;
    rows.sort((a, b) => { const [p, q] = [number(a), number(b)]; const order = typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q)); return down ? -order : order; });
    heads.forEach((head, j) => { head.textContent = columns[j].name + (j === i ? (down ? " ↓" : " ↑") : ""); });
    fill();
  };
  heads.forEach((head, i) => { head.addEventListener("click", () => sort(i)); head.addEventListener("keydown", event => { if (event.key === "Enter") sort(i); }); });
  fill();
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}
const figure_columns = [["iteration", "iterations", 0], ["loss", "loss", -1], ["best", "lowest loss", -1], ["valid", "validation", -1], ["ms", "ms/iteration", -1], ["tokens", "tokens/s", 1], ["tflops", "TFLOP/s", 1], ["mfu", "MFU %", 1], ["memory", "memory", 0]];
function make_run_table() {
  if (!several) return;
  const keys = Object.keys(data.keys || {});
  const there = figure_columns.filter(([name]) => runs.some(run => known(run.figures[name])));
  const best = Object.fromEntries(there.filter(c => c[2] !== 0).map(([name, , sign]) => {
    const values = runs.map(run => run.figures[name]).filter(known);
    return [name, sign > 0 ? Math.max(...values) : Math.min(...values)];
  }));
  const text = (name, x) => name === "memory" ? amount(x) : name === "mfu" ? known(x) ? (100 * x).toFixed(1) : "–" : name === "iteration" ? known(x) ? x.toLocaleString("en") : "–" : short(x, 5);
  const rows = runs.map(run => [{ text: run.name, colour: run_colour(run.index) }, { text: state_of(run).text },
    ...keys.map(key => { const v = data.keys[key][run.index]; return { text: v === null || v === "" ? "–" : v, value: Number.isFinite(Number(v)) && v !== null && v !== "" ? Number(v) : undefined }; }),
    ...there.map(([name]) => ({ text: text(name, run.figures[name]), value: run.figures[name], class: run.figures[name] === best[name] ? "best" : "" }))]);
  const section = at("table");
  section.hidden = false;
  section.replaceChildren(make("div", { class: "head" }, make("h2", {}, "Runs", make("small", {}, "a click on a column sorts; speeds are medians"))),
    make_table([{ name: "run", left: true }, { name: "state", left: true }, ...keys.map(name => ({ name })), ...there.map(c => ({ name: c[1] }))], rows));
}

// ---------------------------------------------------------------------------- parallel coordinates

function draw_sweep() {
  const keys = Object.keys(data.keys || {}), section = at("sweep");
  if (runs.length < 3 || keys.length === 0) return;
  section.hidden = false;
  const axes = keys.slice(0, 8).map(key => ({ name: key, value: run => data.keys[key][run.index] })).concat(
    [["loss", "loss"], ["valid", "validation"], ["tokens", "tokens/s"]].filter(([name]) => runs.some(run => known(run.figures[name]))).map(([name, label]) => ({ name: label, value: run => run.figures[name] })));
  for (const axis of axes) {
    const values = runs.map(axis.value), numbers = values.map(v => v === null || v === "" ? NaN : Number(v));
    axis.numeric = numbers.every(v => !Number.isNaN(v));
    if (axis.numeric) {
      axis.low = Math.min(...numbers); axis.high = Math.max(...numbers);
      axis.log = axis.low > 0 && axis.high / axis.low > 20;
      const f = v => axis.log ? Math.log(v) : v;
      axis.place = run => axis.low === axis.high ? .5 : (f(Number(axis.value(run))) - f(axis.low)) / (f(axis.high) - f(axis.low));
      axis.ticks = axis.low === axis.high ? [[.5, short(axis.low)]] : [...new Set(numbers)].length <= 6 ? [...new Set(numbers)].map(v => [(f(v) - f(axis.low)) / (f(axis.high) - f(axis.low)), short(v)]) :
        [0, .25, .5, .75, 1].map(p => [p, short(axis.log ? Math.exp(f(axis.low) + p * (f(axis.high) - f(axis.low))) : axis.low + p * (axis.high - axis.low), 3)]);
    } else {
      const words = [...new Set(values.map(v => v === null ? "–" : String(v)))].sort();
      axis.place = run => { const v = axis.value(run); return words.length === 1 ? .5 : words.indexOf(v === null ? "–" : String(v)) / (words.length - 1); };
      axis.ticks = words.slice(0, 12).map((word, i) => [words.length === 1 ? .5 : i / (words.length - 1), word.length > 14 ? word.slice(0, 13) + "…" : word]);
    }
  }
  const canvas = make("canvas", { class: "fill" });
  section.replaceChildren(make("div", { class: "head" }, make("h2", {}, "Sweep", make("small", {}, "a line for each run; colour: final loss, dark is low"))), canvas);
  const high = 280, wide = section.clientWidth - 30;
  const ctx = canvas_of(canvas, wide, high);
  const left = 60, right = wide - 70, top = 34, bottom = high - 16;
  const x = i => axes.length === 1 ? (left + right) / 2 : left + i * (right - left) / (axes.length - 1), y = p => bottom - p * (bottom - top);
  const losses = runs.map(run => run.figures.valid ?? run.figures.loss), low = Math.min(...losses.filter(known)), span = Math.max(...losses.filter(known)) - low || 1;
  const order = runs.filter(run => run.shown).sort((a, b) => losses[b.index] - losses[a.index]);
  for (const run of order) {
    const p = known(losses[run.index]) ? 1 - (losses[run.index] - low) / span : 0;
    ctx.strokeStyle = colour("--accent"); ctx.globalAlpha = .12 + .75 * p; ctx.lineWidth = 1 + 1.4 * p;
    ctx.beginPath();
    axes.forEach((axis, i) => { const q = [x(i), y(axis.place(run))]; if (i === 0) ctx.moveTo(...q); else { const m = (x(i - 1) + x(i)) / 2; ctx.bezierCurveTo(m, y(axes[i - 1].place(run)), m, q[1], ...q); } });
    ctx.stroke();
  }
  ctx.globalAlpha = 1; ctx.font = "12px system-ui, sans-serif"; ctx.textBaseline = "middle";
  axes.forEach((axis, i) => {
    ctx.strokeStyle = colour("--soft"); ctx.lineWidth = 1; ctx.beginPath(); ctx.moveTo(x(i), top); ctx.lineTo(x(i), bottom); ctx.stroke();
    ctx.fillStyle = colour("--text"); ctx.textAlign = i === 0 ? "left" : i === axes.length - 1 ? "right" : "center";
    ctx.fillText(axis.name, i === 0 ? 4 : i === axes.length - 1 ? wide - 4 : x(i), 12);
    ctx.textAlign = i === 0 ? "right" : "left"; ctx.fillStyle = colour("--soft");
    for (const [p, label] of axis.ticks) {
      const shift = i === 0 ? -7 : 7, width = ctx.measureText(label).width;
      ctx.fillStyle = colour("--card"); ctx.globalAlpha = .8; ctx.fillRect(x(i) + (i === 0 ? shift - width - 2 : shift - 2), y(p) - 8, width + 4, 16); ctx.globalAlpha = 1;
      ctx.fillStyle = colour("--soft"); ctx.fillText(label, x(i) + shift, y(p));
    }
  });
}
function canvas_of(canvas, wide, high) {
  canvas.width = Math.round(wide * devicePixelRatio); canvas.height = Math.round(high * devicePixelRatio);
  canvas.style.height = high + "px";
  const ctx = canvas.getContext("2d");
  ctx.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  return ctx;
}

// ---------------------------------------------------------------------------- timeline

const span_colours = { "forward-compute": "--c0", "backward-compute": "--c2", "input-gradient": "--c5", "weight-gradient": "--c4", recompute: "--c6", optimizer: "--c1",
  "optimizer-clip-main-grad": "--c1", "optimizer-inner-step": "--c1", "all-grads-sync": "--c3", "all-reduce": "--c3", "reduce-scatter": "--c3", "all-gather": "--c3", broadcast: "--c3", send: "--c7", receive: "--c7" };
const passes = new Set(["forward-compute", "backward-compute", "input-gradient", "weight-gradient"]);
class Timeline {
  constructor(run) {
    this.run = run; this.packed = run.timeline; this.spans = columns_of(run.timeline);
    const t = this.packed, s = this.spans, rows = t.rows;
    this.ranks = t.ranks.length;
    this.by_rank = Array.from({ length: this.ranks }, () => []);
    this.end = 0; this.window = [Infinity, 0];
    this.sums = {};
    for (let i = 0; i < rows; ++i) {
      const name = t.names[s.name[i]];
      this.by_rank[s.rank[i]].push(i);
      this.end = Math.max(this.end, s.start[i] + s.ms[i]);
      this.sums[name] = (this.sums[name] || 0) + s.ms[i] / this.ranks;
      if (passes.has(name)) { this.window[0] = Math.min(this.window[0], s.start[i]); this.window[1] = Math.max(this.window[1], s.start[i] + s.ms[i]); }
    }
    this.row = this.ranks <= 16 ? 30 : Math.max(.8, Math.min(22, 620 / this.ranks));
    this.range = [0, this.end];
    this.canvas = make("canvas", { class: "fill" });
    this.keys = make("div", { class: "keys" });
    const bubble = `bubble ${(100 * t.bubble).toFixed(1)}% measured` + (known(t.simulated_bubble) ? `, ${(100 * t.simulated_bubble).toFixed(1)}% simulated` : "");
    this.card = make("div", { class: "card wide" }, make("div", { class: "head" },
      make("h2", {}, "Timeline", make("small", {}, `iteration ${t.iteration}` + (several ? " of " + run.name : "") + ", milliseconds; wheel or drag to zoom, double click to reset")), make("span", { class: "now" }, bubble)), this.canvas, this.keys);
    this.listen();
  }
  listen() {
    const c = this.canvas;
    c.addEventListener("wheel", event => { if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) return; event.preventDefault(); this.zoom(this.time_at(event.offsetX), event.deltaY > 0 ? 1.25 : .8); }, { passive: false });
    c.addEventListener("dblclick", () => { this.range = [0, this.end]; this.draw(); });
    let from = null;
    c.addEventListener("mousedown", event => { from = { x: event.offsetX, range: [...this.range] }; });
    addEventListener("mouseup", () => { from = null; });
    c.addEventListener("mousemove", event => {
      if (from) {
        const shift = (from.x - event.offsetX) / this.wide * (from.range[1] - from.range[0]);
        const width = from.range[1] - from.range[0], low = Math.max(0, Math.min(this.end - width, from.range[0] + shift));
        this.range = [low, low + width]; this.draw();
      } else this.hover(event);
    });
    c.addEventListener("mouseleave", () => { at("tip").hidden = true; });
  }
  time_at(x) { return this.range[0] + (x - this.left) / this.wide * (this.range[1] - this.range[0]); }
  zoom(at_time, factor) {
    const low = Math.max(0, at_time - (at_time - this.range[0]) * factor), high = Math.min(this.end, at_time + (this.range[1] - at_time) * factor);
    if (high - low > this.end / 1e5) this.range = [low, high];
    this.draw();
  }
  lane_place(lane, lanes) {
    const main = this.row * (lanes > 0 && this.row >= 14 ? .62 : .86);
    if (lane === 0) return [0, main];
    const thin = (this.row * .92 - main) / lanes;
    return this.row >= 14 ? [main + 1 + (lane - 1) * thin, Math.max(1, thin - .5)] : null;
  }
  draw() {
    const t = this.packed, s = this.spans, total = this.card.clientWidth - 30;
    this.left = this.row >= 11 ? 62 : 34; this.wide = total - this.left - 6;
    const high = this.ranks * this.row + 24, ctx = canvas_of(this.canvas, total, high);
    const lanes = Math.max(0, ...Object.keys(t.lanes).map(Number));
    const scale = this.wide / (this.range[1] - this.range[0]), x = time => this.left + (time - this.range[0]) * scale;
    const colours = t.names.map(name => colour(span_colours[name] || "--c7")), shows = t.names.map(name => span_colours[name] !== undefined);
    ctx.save();
    ctx.beginPath(); ctx.rect(this.left, 0, this.wide, high); ctx.clip();
    for (let rank = 0; rank < this.ranks; ++rank) {
      const top = rank * this.row, place = this.lane_place(0, lanes);
      ctx.fillStyle = colour("--idle");
      ctx.fillRect(x(this.window[0]), top, x(this.window[1]) - x(this.window[0]), place[1]);
      let covered = -1;
      const labels = [];
      for (const i of this.by_rank[rank]) {
        const where = this.lane_place(s.lane[i], lanes);
        if (!where || !shows[s.name[i]]) continue;
        const a = x(s.start[i]), b = a + s.ms[i] * scale;
        if (b < this.left || a > total) continue;
        const nested = s.lane[i] === 0 && !passes.has(t.names[s.name[i]]);
        if (s.lane[i] === 0 && !nested && b <= covered) continue;  // nothing new at this scale
        ctx.fillStyle = colours[s.name[i]];
        const inner = nested ? where[1] * .3 : 0;
        ctx.fillRect(a, top + where[0] + inner, Math.max(b - a - (b - a > 3 ? .6 : 0), .6), where[1] - 2 * inner);
        if (s.lane[i] === 0 && !nested) covered = Math.max(covered, a + .3);
        if (!nested && s.lane[i] === 0 && b - a > 22 && this.row >= 14 && s.micro_batch[i] >= 0)
          labels.push([String(s.micro_batch[i]), (Math.max(a, this.left) + Math.min(b, total)) / 2, top + place[1] / 2]);
      }
      ctx.fillStyle = "#fff"; ctx.font = "600 11px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "center";
      for (const label of labels) ctx.fillText(...label);
    }
    ctx.restore();
    ctx.fillStyle = colour("--soft"); ctx.font = "12px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "right";
    const every = Math.max(1, Math.ceil(14 / this.row));
    for (let rank = 0; rank < this.ranks; rank += every) ctx.fillText((this.row >= 11 ? "rank " : "") + rank, this.left - 8, rank * this.row + Math.min(this.row, 20) / 2);
    ctx.textAlign = "center";
    const step = nice_step((this.range[1] - this.range[0]) / 8);
    for (let time = Math.ceil(this.range[0] / step) * step; time <= this.range[1]; time += step) {
      ctx.fillStyle = colour("--grid"); ctx.fillRect(x(time), 0, 1, this.ranks * this.row);
      ctx.fillStyle = colour("--soft"); ctx.fillText(trim(time.toFixed(3)) + " ms", Math.min(total - 24, Math.max(this.left + 16, x(time))), high - 8);
    }
    const names = Object.entries(this.sums).filter(([name]) => span_colours[name]).sort((a, b) => b[1] - a[1]);
    this.keys.replaceChildren(...names.map(([name, ms]) => make("span", { class: "key" }, make("i", { style: { background: colour(span_colours[name]) } }), `${name} ${short(ms, 3)} ms`)),
      make("span", { class: "key" }, make("i", { style: { background: colour("--idle") } }), "bubble"), make("span", { class: "key" }, "milliseconds per rank; numbers: micro-batches; thin rows: messages and overlapped collectives"));
  }
  hover(event) {
    const t = this.packed, s = this.spans, rank = Math.floor(event.offsetY / this.row), time = this.time_at(event.offsetX);
    const found = (this.by_rank[rank] || []).filter(i => s.start[i] <= time && time <= s.start[i] + s.ms[i]);
    if (rank < 0 || rank >= this.ranks || event.offsetX < this.left) { at("tip").hidden = true; return; }
    at("tip").replaceChildren(make("div", { class: "soft" }, t.ranks[rank] + ", " + time.toFixed(3) + " ms"), ...found.slice(0, 8).map(i => make("div", { class: "row" },
      make("span", {}, make("i", { class: "swatch", style: { background: colour(span_colours[t.names[s.name[i]]] || "--c7") } }),
        t.names[s.name[i]] + (s.micro_batch[i] >= 0 ? " of micro-batch " + s.micro_batch[i] : "") + (s.lane[i] > 0 ? " (" + (t.lanes[s.lane[i]] || "") + ")" : "")), make("b", {}, s.ms[i].toFixed(3) + " ms"))),
      ...(found.length ? [] : [make("div", {}, "idle")]));
    show_tip(event.clientX, event.clientY);
  }
}
function nice_step(about) { const power = 10 ** Math.floor(Math.log10(about)); for (const m of [1, 2, 5, 10]) if (m * power >= about) return m * power; return about; }
const timelines = [];
function make_timelines() {
  for (const run of runs) if (run.timeline) { const timeline = new Timeline(run); at("timelines").append(timeline.card); timelines.push(timeline); }
}

// ---------------------------------------------------------------------------- maps of ranks and GPUs

class HeatMap {
  constructor(run, map, title, unit, label, fixed) {
    Object.assign(this, { map, label, unit, fixed, values: new Float32Array(bytes_of(map.values)) });
    this.canvas = make("canvas", { class: "fill" });
    this.note = make("span", { class: "now" });
    this.card = make("div", { class: "card wide", style: { marginBottom: "16px" } }, make("div", { class: "head" },
      make("h2", {}, title, make("small", {}, unit + (several ? ", " + run.name : ""))), this.note), this.canvas);
    this.canvas.addEventListener("mousemove", event => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { at("tip").hidden = true; });
    const known_values = Array.from(this.values).filter(known).sort((a, b) => a - b);
    const q = p => known_values[Math.floor(p * (known_values.length - 1))];
    this.low = fixed ? fixed[0] : q(.01); this.high = fixed ? fixed[1] : q(.995);
    if (!(this.high > this.low)) this.high = this.low + 1;
    this.note.textContent = `${short(this.low, 3)} to ${short(this.high, 3)} ${fixed ? "%" : "ms"}, median ${short(q(.5), 3)}`;
  }
  draw() {
    const { rows, columns } = this.map, total = this.card.clientWidth - 30;
    this.row = Math.max(.5, Math.min(14, 300 / rows)); this.left = 62; this.wide = total - this.left;
    const high = Math.ceil(rows * this.row), ctx = canvas_of(this.canvas, total, high + 22);
    const image = new ImageData(columns, rows), low = rgb(colour("--grid")), top = rgb(colour(this.fixed ? "--good" : "--bad")), mid = rgb(colour("--c0"));
    for (let c = 0; c < columns; ++c) for (let r = 0; r < rows; ++r) {
      const v = this.values[c * rows + r], i = 4 * (r * columns + c);
      if (!known(v)) continue;
      const p = Math.max(0, Math.min(1, (v - this.low) / (this.high - this.low)));
      const [a, b, q] = this.fixed ? [low, top, p] : p < .5 ? [low, mid, 2 * p] : [mid, top, 2 * p - 1];
      for (let k = 0; k < 3; ++k) image.data[i + k] = a[k] + (b[k] - a[k]) * q;
      image.data[i + 3] = 255;
    }
    const small = make("canvas"); small.width = columns; small.height = rows; small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false; ctx.drawImage(small, this.left, 0, this.wide, high);
    ctx.fillStyle = colour("--soft"); ctx.font = "12px system-ui, sans-serif"; ctx.textAlign = "right"; ctx.textBaseline = "middle";
    const step = Math.max(1, nice_step(Math.max(rows / 12, 16 / this.row)));
    for (let r = 0; r < rows; r += Math.ceil(step)) ctx.fillText(String(r), this.left - 8, Math.max(7, (r + .5) * this.row));
    ctx.textAlign = "center";
    const x = this.map.x, ticks = Math.min(6, columns);
    for (let k = 0; k < ticks; ++k) { const c = Math.floor(k * (columns - 1) / Math.max(1, ticks - 1)); ctx.fillText(short(x[c], 5), Math.min(total - 20, this.left + (c + .5) * this.wide / columns), high + 12); }
  }
  hover(event) {
    const c = Math.floor((event.offsetX - this.left) / this.wide * this.map.columns), r = Math.floor(event.offsetY / this.row);
    if (c < 0 || c >= this.map.columns || r < 0 || r >= this.map.rows) { at("tip").hidden = true; return; }
    at("tip").replaceChildren(make("div", { class: "soft" }, "iteration " + this.map.x[c]), make("div", { class: "row" }, make("span", {}, this.map.labels[r] || this.label + " " + r), make("b", {}, short(this.values[c * this.map.rows + r]) + (this.fixed ? "%" : " ms"))));
    show_tip(event.clientX, event.clientY);
  }
}
function rgb(text) { const hex = text.replace("#", ""); const n = parseInt(hex.length === 3 ? hex.replace(/./g, "$&$&") : hex, 16); return [n >> 16 & 255, n >> 8 & 255, n & 255]; }
const maps = [];
function make_maps() {
  for (const run of runs.slice(0, 3)) {
    if (run.rank_map && run.rank_map.rows > 1) maps.push(new HeatMap(run, run.rank_map, "Compute time of ranks", "ms of passes per iteration, over iterations; a row for each rank, a red row is a straggler", "rank"));
    if (run.gpu_map && run.gpu_map.rows > 1) maps.push(new HeatMap(run, run.gpu_map, "Use of GPUs", "% of the time with kernels, over iterations; a row for each GPU", "GPU", [0, 100]));
  }
  at("maps").replaceChildren(...maps.map(map => map.card));
}

// ---------------------------------------------------------------------------- memory, timers, events

function bars(rows) {
  const most = Math.max(...rows.map(row => row.value), 1e-30);
  return make("div", { class: "bars" }, ...rows.flatMap(row => [make("span", {}, row.name),
    make("div", { class: "track" }, make("b", { style: { width: 100 * row.value / most + "%", background: row.colour || "var(--c0)" } }), row.mark === undefined ? null : make("s", { style: { left: `calc(${100 * row.mark / most}% - 1px)` } })),
    make("span", { class: "amount" }, row.text)]));
}
function make_details() {
  const cards = [];
  for (const run of runs.slice(0, 6)) {
    const whose = several ? make("small", {}, run.name) : null, memory = run.memory;
    if (memory) {
      const purposes = Object.entries(memory.purposes || {}).filter(([, bytes]) => bytes > 0), total = purposes.reduce((sum, [, bytes]) => sum + bytes, 0);
      const used = memory.gpu_bytes || memory.peak_bytes, most = Math.max(total, used, 1);
      const stack = total > 0 ? make("div", { class: "stack", style: { width: 100 * total / most + "%" } }, ...purposes.map(([name, bytes], i) => make("b", { style: { width: 100 * bytes / total + "%", background: `var(--c${i % 8})` }, title: `${name}: ${amount(bytes)}` }, bytes / most > .12 ? name : ""))) : null;
      const keys = make("div", { class: "keys" }, ...purposes.map(([name, bytes], i) => make("span", { class: "key" }, make("i", { style: { background: `var(--c${i % 8})` } }), `${name} ${amount(bytes)}`)));
      cards.push(make("div", { class: "card" }, make("div", { class: "head" }, make("h2", {}, "Memory of the rank with the highest peak", whose), make("span", { class: "now" }, "planned " + amount(memory.planned_bytes))),
        stack, total > 0 ? keys : null, make("div", { style: { height: "8px" } }),
        bars([{ name: "planned", value: memory.planned_bytes, text: amount(memory.planned_bytes), colour: "var(--c7)" }, memory.gpu_bytes ? { name: "on the GPU", value: memory.gpu_bytes, text: amount(memory.gpu_bytes), mark: memory.planned_bytes } : null,
          { name: "host, now", value: memory.resident_bytes, text: amount(memory.resident_bytes) }, { name: "host, peak", value: memory.peak_bytes, text: amount(memory.peak_bytes) }].filter(Boolean))));
    }
    if (run.timers && run.timers.timers) {
      const rows = Object.entries(run.timers.timers).map(([name, timer]) => ({ name, value: timer.max_ms, mark: timer.min_ms, text: `${short(timer.min_ms, 3)} – ${short(timer.max_ms, 3)} ms` }));
      if (rows.length) cards.push(make("div", { class: "card" }, make("div", { class: "head" }, make("h2", {}, "Time of an iteration", whose), make("span", { class: "now" }, "bar: slowest rank, line: fastest")), bars(rows)));
    }
  }
  at("details").replaceChildren(...cards);
}
function make_events() {
  const all = runs.flatMap(run => run.marks.map(mark => ({ ...mark, run })));
  if (all.length === 0) return;
  all.sort((a, b) => (b.time || 0) - (a.time || 0));
  const rows = all.slice(0, 1000).map(mark => [{ text: known(mark.time) ? date(mark.time) : "–", value: mark.time }, { text: known(mark.iteration) ? mark.iteration.toLocaleString("en") : "–", value: mark.iteration },
    ...(several ? [{ text: mark.run.name, colour: run_colour(mark.run.index) }] : []), { text: (mark_looks[mark.kind] || { name: mark.kind }).name }, { text: mark.text, class: "text" }]);
  at("events").hidden = false;
  at("events").replaceChildren(make("div", { class: "head" }, make("h2", {}, "Events", make("small", {}, all.length > 1000 ? `the newest 1000 of ${all.length}` : String(all.length)))),
    make_table([{ name: "time", left: true }, { name: "iteration" }, ...(several ? [{ name: "run", left: true }] : []), { name: "event", left: true }, { name: "what", left: true }], rows));
}

// ---------------------------------------------------------------------------- the page

function make_chips() {
  if (!several) return;
  at("runs").replaceChildren(...runs.map(run => {
    const chip = make("button", { type: "button", class: "chip" + (run.shown ? "" : " off"), title: run.start && run.start.command || "", "aria-pressed": String(run.shown) }, make("i", { style: { background: run_colour(run.index) } }), run.name);
    chip.addEventListener("click", event => {
      if (event.shiftKey) for (const each of runs) each.shown = each === run; else run.shown = !run.shown;
      if (runs.every(each => !each.shown)) for (const each of runs) each.shown = true;
      make_chips(); draw_charts(); draw_sweep();
    });
    return chip;
  }));
}
function draw_all() {
  make_chips(); make_tiles(); make_run_table(); draw_sweep(); draw_charts(); make_details(); make_events();
  for (const each of [...timelines, ...maps]) each.draw();
}
const dark = matchMedia("(prefers-color-scheme: dark)");
function set_theme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "light" : "dark";
}
const asked = new URLSearchParams(location.search).get("theme");
set_theme(asked === "dark" || asked === "light" ? asked : dark.matches ? "dark" : "light");
dark.addEventListener("change", () => { set_theme(dark.matches ? "dark" : "light"); draw_all(); });
at("theme").addEventListener("click", () => { set_theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); draw_all(); });
at("axis").addEventListener("change", () => { view.axis = at("axis").value; draw_charts(); });
at("log").addEventListener("change", () => { view.log = at("log").checked; draw_charts(); });
let pending = 0;
at("smoothing").addEventListener("input", () => { view.smoothing = Number(at("smoothing").value); clearTimeout(pending); pending = setTimeout(draw_charts, 60); });
at("reset").addEventListener("click", () => set_range(null, null, null));
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; clearTimeout(pending); pending = setTimeout(draw_all, 120); });

at("title").textContent = several ? runs.length + " runs" : runs[0].name;
document.title = (several ? runs.length + " runs" : runs[0].name) + " – Trireme";
at("made").textContent = "Made by trireme-report on " + date(data.made) + ". Curves show the lowest and highest value of each pixel; zooming shows more. Charts: uPlot 1.6.32, MIT licence, © 2022 Leon Sorokin.";
make_charts(); make_timelines(); make_maps(); draw_all();
document.documentElement.dataset.ready = String(charts.filter(chart => chart.plot).length);
})();
