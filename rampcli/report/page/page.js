"use strict";
// The page: what is chosen, when it is asked for, and where it is shown.

const ASK_AGAIN_MS = 1000;
const READING_MS = 500;
const HIDDEN_MS = 30000;
const SMOOTHEST = 0.1; // share of the range that the slider's end averages over
const THEMES = { auto: "Theme: automatic", light: "Theme: light", dark: "Theme: dark" };

class Page {
  constructor(source) {
    this.source = source;
    this.view = { axis: "samples", smooth: 0, log: false, marks: [...DEFAULT_MARKS], range: null };
    this.axisIsChosen = false;
    this.selected = []; // names, in the order of their colours
    this.slots = new Map();
    this.listed = new Map();
    this.data = new Map();
    this.charts = new Map(); // by the titles of their sections
    this.asking = false;
    this.shown = [];
  }

  async start() {
    this.readAddress();
    this.buildTheme();
    this.buildToolbar();
    document.querySelector(".layout").classList.toggle("alone", !this.source.live);
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    addEventListener("hashchange", () => { this.readAddress(); this.buildToolbar(); this.ask(); });
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    await this.ask();
  }

  /** Asks for what has changed and shows it, again and again on a live page. */
  async ask() {
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    clearTimeout(this.timer);
    const begun = performance.now();
    try {
      do {
        this.again = false;
        await this.load();
      } while (this.again);
      this.connect(true);
    } catch (error) {
      this.connect(false, error);
    } finally {
      this.asking = false;
    }
    if (!this.source.live) return;
    const reads = this.runs().some(({ data }) => data.reading < 1);
    // A slow connection is not kept busy all the time.
    const pause = Math.max(reads ? READING_MS : ASK_AGAIN_MS, 4 * (performance.now() - begun));
    this.timer = setTimeout(() => this.ask(), document.hidden ? HIDDEN_MS : pause);
  }

  async load() {
    const list = await this.source.list();
    this.listed = new Map(list.map((run) => [run.name, run]));
    if (this.selected.length === 0 && list.length > 0) {
      const trains = list.find((run) => run.trains) ?? list[0];
      this.selected = this.source.live ? [trains.name] : list.map((run) => run.name);
    }
    const view = { ...this.view };
    const found = await Promise.allSettled(this.selected.map((name) => this.source.run(name, view)));
    this.selected.forEach((name, index) => {
      if (found[index].value) this.data.set(name, found[index].value);
      else if (found[index].status === "fulfilled") this.data.delete(name);
    });
    this.useUsualAxis();
    this.show();
    const failed = found.find((one) => one.status === "rejected");
    if (failed) throw failed.reason;
  }

  runs() {
    return this.selected.filter((name) => this.data.has(name)).map((name) => ({ data: this.data.get(name), slot: this.slotOf(name) }));
  }

  /** Returns the place of a run's colour. A run keeps it as long as it is selected. */
  slotOf(name) {
    if (!this.slots.has(name)) {
      const taken = new Set(this.slots.values());
      let slot = 0;
      while (taken.has(slot)) slot++;
      this.slots.set(name, slot);
    }
    return this.slots.get(name);
  }

  /** Returns the axis where none is chosen. Samples whose length differs do not measure a run. */
  usualAxis() {
    return hasSeveralLengths(this.runs()) ? "tokens" : "samples";
  }

  useUsualAxis() {
    const axis = this.usualAxis();
    if (this.axisIsChosen || this.view.range || axis === this.view.axis) return;
    this.view.axis = axis;
    this.buildToolbar();
  }

  show() {
    this.showList();
    const runs = this.runs();
    const { notices: host, summary: top, tables: below, charts } = this.hosts();
    document.getElementById("toolbar").hidden = runs.length === 0;
    if (runs.length === 0) {
      fill(host);
      fill(top, this.listed.size === 0 ? noRuns() : element("div", { class: "empty" }, element("p", { class: "soft" }, "Choose a run.")));
      fill(below);
      charts.hidden = true;
      this.shown = [];
      return;
    }
    charts.hidden = false;
    document.title = `${runs.map(({ data }) => data.name).join(", ")} · rampcli`;
    fill(host, notices(runs, this.listed));
    fill(top, summary(runs, this.listed));
    const now = [JSON.stringify(this.view), ...runs.flatMap(({ data, slot }) => [data, slot])];
    if (now.length === this.shown.length && now.every((one, index) => one === this.shown[index])) return;
    this.shown = now;
    this.showCharts(runs);
    this.showTables(runs, below);
  }

  hosts() {
    return Object.fromEntries(["notices", "summary", "charts", "tables"].map((id) => [id, document.getElementById(id)]));
  }

  showCharts(runs) {
    const host = document.getElementById("charts");
    for (const chart of runs.flatMap(({ data }) => data.charts)) {
      if (!this.charts.has(chart.section)) {
        const grid = element("div", { class: "grid" });
        const group = element("section", { "aria-label": chart.section }, element("h2", {}, chart.section), grid);
        host.append(group);
        this.charts.set(chart.section, { group, grid, charts: [] });
      }
      const { grid, charts } = this.charts.get(chart.section);
      if (charts.some((one) => one.spec.id === chart.id)) continue;
      charts.push(new Chart(specOf(chart), this));
      grid.append(charts[charts.length - 1].card);
    }
    for (const { group, charts } of this.charts.values()) {
      group.hidden = false; // a hidden chart has no width
      const shown = charts.map((chart) => chart.show(runs, this.view));
      group.hidden = !shown.includes(true);
    }
  }

  /** Shows the tables. What a reader has opened stays open. */
  showTables(runs, host) {
    host.className = "tables";
    const isOpen = host.querySelector("details")?.open ?? false;
    fill(host, runs.length ? element("h2", {}, "Details") : null, tables(runs));
    const details = host.querySelector("details");
    if (details) details.open = isOpen;
  }

  showList() {
    if (!this.source.live) return;
    const host = document.getElementById("runs");
    if (!host.firstChild) {
      this.filter = element("input", { type: "search", placeholder: "Filter", "aria-label": "Filter runs", input: () => this.showList() });
      this.list = element("ul");
      host.append(element("h2", {}, "Runs"), this.filter, this.list);
    }
    const wanted = this.filter.value.toLowerCase();
    const focused = document.activeElement?.dataset?.run;
    this.filter.hidden = this.listed.size < 8 && wanted === "";
    const kept = [...this.listed.values()].filter((run) => run.shown.toLowerCase().includes(wanted));
    fill(this.list, kept.map((run) => element("li", {}, this.entry(run))));
    if (focused !== undefined) {
      [...this.list.querySelectorAll("input")].find((input) => input.dataset.run === focused)?.focus();
    }
  }

  entry(run) {
    const isOn = this.selected.includes(run.name);
    const state = run.damage ? "damaged" : run.trains === false && run.status === "running" ? "silent" : run.status;
    const row = run.row;
    const reached = row ? `${compact(row.consumed_samples)} ${run.unit}` : null;
    const facts = [reached, ...run.goals.map(({ name, value }) => `${name} ${compact(value)}`)].filter(Boolean);
    return element("label", { class: "run", swatch: isOn ? `var(--${runColour(this.slotOf(run.name))})` : null },
      element("input", { type: "checkbox", checked: isOn, "data-run": run.name, change: () => this.toggle(run.name) }),
      element("span", { class: "name" }, run.shown),
      element("span", { class: "facts" }, stateLabel(state), run.changed ? ` · ${ago(run.changed)}` : ""),
      element("span", { class: "facts" }, run.damage ?? facts.join(" · ")));
  }

  toggle(name) {
    if (this.selected.includes(name)) {
      this.selected = this.selected.filter((one) => one !== name);
      this.slots.delete(name);
    } else {
      this.selected.push(name);
    }
    this.change();
  }

  /** Shows a range of the horizontal axis, at a finer resolution; null shows all. */
  zoom(range) {
    if (this.view.axis !== "time" && range) range = [Math.max(0, range[0]), range[1]];
    this.view.range = range;
    this.change();
  }

  /** Says where the crosshair is, and in which phase of each run. */
  point(at) {
    const { axis } = this.view;
    const runs = this.runs();
    const place = [AXES[axis].show(Math.max(0, at)), axis === "time" ? null : axisLabel(axis, runs)];
    const phases = [...new Set(runs.map(({ data }) => phaseAt(data, axis, at)))].filter(Boolean);
    if (phases.length) place.push(`· phase ${phases.join(", ")}`);
    this.at.textContent = at === null ? "" : place.filter(Boolean).join(" ");
  }

  change() {
    this.writeAddress();
    this.buildToolbar();
    this.show();
    this.ask();
  }

  buildToolbar() {
    const { view } = this;
    const focused = document.activeElement?.id;
    const axes = element("fieldset", {}, element("legend", {}, "Against"), element("span", { class: "segments" }, Object.keys(AXES).map((axis) =>
      element("label", {}, element("input", { type: "radio", name: "axis", id: `axis-${axis}`, checked: view.axis === axis, change: () => this.choose(axis) }), axis === "time" ? "time" : axisLabel(axis, this.runs())))));
    const slider = element("input", { type: "range", id: "smooth", min: 0, max: 100, value: Math.sqrt(view.smooth / SMOOTHEST) * 100, "aria-label": "Smoothing",
      input: (event) => this.smooth(event.target), change: () => this.writeAddress() });
    const log = element("label", {}, element("input", { type: "checkbox", id: "log", checked: view.log, change: (event) => { view.log = event.target.checked; this.change(); } }), "Log scale");
    const marks = element("fieldset", {}, element("legend", {}, "Marks"), Object.entries(MARKS).map(([kind, mark]) =>
      element("button", { type: "button", class: "chip", id: `mark-${kind}`, "aria-pressed": String(view.marks.includes(kind)), click: () => this.mark(kind) }, markPicture(kind), mark.label)));
    this.at = element("span", { class: "at", "aria-hidden": "true" });
    const reset = view.range ? element("button", { type: "button", class: "reset", id: "reset", click: () => this.zoom(null) }, "Show all") : null;
    fill(document.getElementById("toolbar"), axes, element("label", {}, "Smoothing ", slider), log, marks, reset, this.at);
    if (focused) document.getElementById(focused)?.focus();
  }

  choose(axis) {
    this.view.axis = axis;
    this.axisIsChosen = true;
    this.view.range = null;
    this.change();
  }

  smooth(slider) {
    this.view.smooth = SMOOTHEST * (slider.value / 100) ** 2;
    this.show();
  }

  mark(kind) {
    const { marks } = this.view;
    this.view.marks = marks.includes(kind) ? marks.filter((one) => one !== kind) : [...marks, kind];
    this.change();
  }

  buildTheme() {
    const button = document.getElementById("theme");
    const apply = (theme) => {
      if (theme === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      button.textContent = THEMES[theme];
      this.theme = theme;
      this.redraw();
    };
    button.addEventListener("click", () => {
      const names = Object.keys(THEMES);
      const next = names[(names.indexOf(this.theme) + 1) % names.length];
      apply(next);
      remember(next);
    });
    apply(remembered() in THEMES ? remembered() : "auto");
  }

  redraw() {
    if (this.at) this.buildToolbar();
    for (const { charts } of this.charts.values()) charts.forEach((chart) => chart.redraw());
  }

  /** Draws the charts in light colours for paper, and again as they were. */
  print(begins) {
    document.documentElement.classList.toggle("paper", begins);
    if (begins) document.documentElement.dataset.theme = "light";
    else if (this.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
    for (const { charts } of this.charts.values()) charts.forEach((chart) => { chart.resize(); chart.redraw(); });
  }

  connect(works, error) {
    const host = document.getElementById("connection");
    host.dataset.state = works ? "live" : "lost";
    if (!works) console.warn(error);
    const isOurs = error && !(error instanceof TypeError && /fetch/i.test(error.message));
    if (!this.source.live) host.textContent = `report of ${clock(this.source.report.made)}`;
    else host.textContent = works ? "live" : isOurs ? String(error.message) : "The server does not answer. Trying again.";
  }

  readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (given.has("run")) this.selected = given.getAll("run");
    this.axisIsChosen = given.get("x") in AXES;
    if (this.axisIsChosen) this.view.axis = given.get("x");
    const smooth = Number(given.get("smooth"));
    if (smooth >= 0 && smooth <= SMOOTHEST) this.view.smooth = smooth;
    this.view.log = given.get("log") === "1";
    if (given.has("marks")) this.view.marks = given.get("marks").split(",").filter((kind) => kind in MARKS);
    const range = ["from", "to"].map((name) => Number(given.get(name) ?? NaN));
    this.view.range = range.every(Number.isFinite) && range[0] < range[1] ? range : null;
  }

  /** Writes what is chosen into the address, so that it can be reloaded and shared. */
  writeAddress() {
    const { view } = this;
    const words = new URLSearchParams();
    if (this.source.live) this.selected.forEach((name) => words.append("run", name));
    if (view.axis !== "samples" || this.usualAxis() !== "samples") words.set("x", view.axis);
    if (view.smooth > 0) words.set("smooth", view.smooth.toPrecision(3));
    if (view.log) words.set("log", "1");
    if (view.marks.join() !== DEFAULT_MARKS.join()) words.set("marks", view.marks.join());
    if (view.range) {
      words.set("from", view.range[0].toPrecision(8));
      words.set("to", view.range[1].toPrecision(8));
    }
    history.replaceState(null, "", `#${words}`);
  }
}

function noRuns() {
  return element("div", { class: "empty" }, element("h1", {}, "No runs yet"),
    element("p", { class: "soft" }, "A run appears here as soon as it starts. For example:"),
    element("code", {}, "rampcli pretrain --factory llama3_tiny"));
}

// A browser may refuse to remember anything, as for a file.
function remembered() {
  try {
    return localStorage.getItem("theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function remember(theme) {
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // The theme lasts until the page is closed.
  }
}

new Page(findSource()).start();
