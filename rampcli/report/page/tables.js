"use strict";
// The text of the page: the summary, stages, times, messages and settings.

const STATES = {
  running: "training", starting: "starting", complete: "complete", failed: "failed", preempted: "saved and stopped",
  stage_boundary: "stopped at a stage boundary", "not started": "not started", damaged: "cannot be read", silent: "not training",
};

/** Returns the status in state.json, "starting" while processes start, or "silent" if it is "running" and no process trains the run. */
function stateOf(data, facts) {
  if (data.damage) return "damaged";
  if (data.starts && facts?.trains !== false) return "starting";
  const state = data.state?.status ?? "not started";
  return facts?.trains === false && state === "running" ? "silent" : state;
}

function stateLabel(state) {
  return element("span", { class: "state", "data-state": state }, STATES[state] ?? state);
}

/** Returns the summary of a run as pairs of a name and what is shown. */
function facts(data) {
  const last = data.last;
  const shown = [];
  const add = (name, value, show, of = null) => {
    if (value !== null && value !== undefined) shown.push([name, [show(value), of && element("span", { class: "of" }, ` ${of}`)]]);
  };
  const end = data.end_sample;
  add("step", last.step, whole);
  add(data.unit, last.consumed_samples, compact, end === null ? null : `of ${compact(end)}`);
  add("phase", data.phase, String);
  add("batch size", last.global_batch_size, whole);
  const addTiles = (tiles) => { for (const { name, column, show } of tiles) add(name, last[column], SHOWN[show]?.show ?? compact); };
  addTiles(data.tiles.filter(({ section }) => section === "Learning"));
  for (const [name, curve] of Object.entries(data.curves)) {
    if (name.startsWith("validation")) add(name, curve.last, compact);
  }
  add("parameters", data.parameters, compact, data.embedding_parameters ? `${compact(data.embedding_parameters)} embeddings` : null);
  if (data.parameters && data.tokens !== null) add("tokens per parameter", data.tokens / data.parameters, compact);
  addTiles(data.tiles.filter(({ section }) => section !== "Learning"));
  const time = data.trained.edges.time;
  add("goodput", data.spent?.goodput, percent);
  add("time", time.length ? time[time.length - 1] : null, duration);
  const stages = data.plan?.stages.length ?? 0;
  const ofStage = stages > 1 && data.stage_left_s !== null ? `stage ${duration(data.stage_left_s)}` : null;
  add("time left", data.run_left_s, duration, ofStage);
  return shown;
}

/** Returns the summary of one run: tiles; or of several: a table. */
function summary(runs, listed) {
  if (runs.length === 1) {
    const { data } = runs[0];
    const end = data.end_sample;
    const done = end ? Math.min(1, (data.last.consumed_samples ?? 0) / end) : null;
    return [
      element("div", { class: "head" }, element("h1", {}, data.name), stateLabel(stateOf(data, listed.get(data.name))),
        data.device ? element("span", { class: "soft" }, data.device) : null),
      element("dl", { class: "tiles" }, facts(data).map(([name, value]) =>
        element("div", { class: "tile" }, element("dt", { title: name }, name), element("dd", {}, ...value.filter(Boolean))))),
      done === null ? null : element("div", { class: "progress", role: "img", "aria-label": `${percent(done)} of the planned ${data.unit}` },
        element("div", { width: `${done * 100}%` })),
    ];
  }
  const found = runs.map(({ data }) => new Map(facts(data)));
  const names = [...new Set(found.flatMap((one) => [...one.keys()]))];
  const columns = [
    { name: "run", text: true, cell: (index) => runName(runs[index]) },
    { name: "state", text: true, cell: (index) => stateLabel(stateOf(runs[index].data, listed.get(runs[index].data.name))) },
    ...names.map((name) => ({ name, cell: (index) => (found[index].get(name) ?? ["–"]).filter(Boolean) })),
  ];
  return [element("div", { class: "card" }, table(columns, runs.map((_, index) => index), "Runs"))];
}

function runName({ data, slot }) {
  return [element("i", { class: "box", swatch: `var(--${runColour(slot)})` }), data.name];
}

/** Returns messages about runs that are damaged, being read, failed, not begun or silent. */
function notices(runs, listed) {
  return runs.flatMap(({ data }) => {
    const found = [];
    const title = runs.length > 1 ? `${data.name}: ` : "";
    const error = data.state?.status === "failed" ? data.state.error : null;
    if (data.damage) found.push(notice("bad", `${title}a file of this run cannot be read`, data.damage));
    if (error) found.push(notice("bad", `${title}this run has failed`, error.message, error.remedy && `Try: ${error.remedy}`));
    if (data.settings_problem) found.push(notice("", `${title}the size of the model is unknown`, `This version refuses its settings: ${data.settings_problem}.`));
    if (data.reading < 1) {
      found.push(notice("", `${title}reading metrics.jsonl`, `${percent(data.reading)} of it is read, ${whole(data.rows)} steps so far. The charts show these.`));
    } else if (data.rows === 0 && !data.damage && !error) {
      found.push(notice("", `${title}no step is complete yet`, "Processes start and load their data first. The page shows the first step as soon as it is there."));
    }
    if (data.quiet) {
      found.push(notice(data.rows ? "bad" : "", `${title}this run stands still`, `There was ${data.quiet}. A process may hang or be stopped: its log and the processes of its hosts tell.`));
    }
    if (stateOf(data, listed.get(data.name)) === "silent") {
      found.push(notice("", `${title}no process trains this run on this machine`, "It says that it is running, but it may have been killed. The same command resumes it. If it trains on other machines, this page may not see it."));
    }
    return found;
  });
}

function notice(kind, title, ...lines) {
  return element("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" },
    element("p", {}, element("strong", {}, title)), lines.filter(Boolean).map((line) => element("p", {}, line)));
}

function section(title, ...content) {
  return element("section", { class: "card", "aria-label": title }, element("h3", {}, title), ...content);
}

/** Returns the stages of a run, as planned and as trained. */
function stagesTable(run, several) {
  const { data } = run;
  const trained = new Map();
  for (const part of data.trained.parts) trained.set(part.stage, [...(trained.get(part.stage) ?? []), part]);
  const planned = new Map((data.plan?.stages ?? []).map((stage) => [stage.stage, stage]));
  const stages = [...new Set([...planned.keys(), ...trained.keys()])].sort((one, other) => one - other);
  if (stages.length === 0) return null;
  const sum = (stage, name) => (trained.get(stage) ?? []).reduce((total, part) => total + part[name], 0);
  const { origin } = data;
  const isInherited = (stage) => {
    if (!origin || trained.has(stage)) return false;
    const { first_step: first, steps } = planned.get(stage);
    return steps !== null && first + steps <= origin.step;
  };
  const both = (stage, name) => {
    if (isInherited(stage)) return "–";
    const [plan, done] = [planned.get(stage)?.[name], sum(stage, name)];
    return plan === done ? whole(done) : [whole(done), element("span", { class: "planned" }, ` of ${plan === null || plan === undefined ? "–" : whole(plan)}`)];
  };
  const last = (stage) => (trained.get(stage) ?? []).at(-1);
  const columns = [
    ...(data.plan?.phases ? [{ name: "phase", text: true, cell: (stage) => phaseOf(data, stage) ?? "–" }] : []),
    { name: "stage", cell: (stage) => whole(stage) },
    { name: "batch", cell: (stage) => whole((last(stage) ?? planned.get(stage)).global_batch_size) },
    { name: "nodes", cell: (stage) => { const nodes = planned.get(stage)?.num_nodes; return nodes ? whole(nodes) : "–"; } },
    { name: "processes", cell: (stage) => (trained.has(stage) ? [...new Set(trained.get(stage).map((part) => whole(part.world_size)))].join(", ") : "–") },
    { name: data.unit, cell: (stage) => both(stage, "samples") },
    { name: "steps", cell: (stage) => both(stage, "steps") },
    { name: "time in steps", cell: (stage) => (trained.has(stage) ? duration(sum(stage, "steps_s")) : "–") },
    { name: "tokens/s", cell: (stage) => { const part = last(stage); return part ? compact(part.tokens_per_s) : "–"; } },
    { name: "last loss", cell: (stage) => { const part = last(stage); return part && part.loss !== null ? compact(part.loss) : "–"; } },
  ];
  const continues = origin && `Continues ${origin.run} after step ${whole(origin.step)}. Stages before that were not trained in this run.`;
  return section(several ? `Stages of ${data.name}` : "Stages, planned and trained",
    continues && element("p", { class: "soft" }, continues), table(columns, stages, "Stages"));
}

const SPENT_COLOURS = {
  computing: "time-0", "computing and exchange": "time-0", exchange: "time-4", "waiting for data": "time-1", "waiting for responses": "time-1", "between steps": "time-2",
  validation: "time-3", "text samples": "time-6", checkpoints: "time-5", compilation: "time-6", "start and end": "time-7",
  "stage boundaries": "time-8", restarts: "time-9", "lost work": "time-9", stopped: "time-10",
};

/** Returns where the time of the runs went: a bar for each, and a table with shares of the running time. */
function spentTable(runs) {
  const known = runs.filter(({ data }) => data.spent && data.spent.parts.length > 0);
  if (known.length === 0) return null;
  const names = Object.keys(SPENT_COLOURS).filter((name) => known.some((run) => secondsOf(run, name) > 0));
  const swatch = (name) => `var(--${SPENT_COLOURS[name]})`;
  const bars = known.map((run) => {
    const { total_s: total, goodput } = run.data.spent;
    const parts = names.map((name) => [name, secondsOf(run, name)]).filter(([, seconds]) => seconds > 0);
    const bar = element("div", { class: "spent", role: "img", "aria-label": parts.map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ") },
      parts.map(([name, seconds]) => element("div", { width: `${100 * seconds / total}%`, swatch: swatch(name), title: `${name}: ${duration(seconds)}` })));
    const good = goodput === null ? "" : `, ${percent(goodput)} of the running time in steps that count (goodput)`;
    return [element("p", { class: "soft" }, ...(runs.length > 1 ? [...runName(run), ": "] : []), `${duration(total)} in all${good}`), bar];
  });
  const columns = [
    { name: "", text: true, cell: (name) => [element("i", { class: "box", swatch: swatch(name) }), name] },
    ...known.flatMap((run) => [
      { name: known.length > 1 ? runName(run) : "time", cell: (name) => (secondsOf(run, name) > 0 ? duration(secondsOf(run, name)) : "–") },
      { name: "share", cell: (name) => (name !== "stopped" && secondsOf(run, name) > 0 ? percent(secondsOf(run, name) / run.data.spent.running_s) : "–") },
    ]),
  ];
  return section("Where the time went", ...bars.flat(), table(columns, names, "Where the time went"));
}

function secondsOf(run, name) {
  return run.data.spent.parts.find((part) => part.name === name)?.s ?? 0;
}

const KINDS = {
  fault: "fault", lost: "lost work", skip: "skipped step", slow_data: "slow data", spare_ranks: "spare ranks", tracker_off: "tracker",
  restart: "restart", preempted: "stop", average: "average",
};

function logTable(runs) {
  const lines = runs.flatMap((run) => run.data.log.map((entry) => ({ ...entry, run })));
  if (lines.length === 0) return null;
  lines.sort((one, other) => other.time - one.time);
  const columns = [
    { name: "time", cell: (entry) => clock(entry.time) },
    ...(runs.length > 1 ? [{ name: "run", text: true, cell: (entry) => runName(entry.run) }] : []),
    { name: "step", cell: (entry) => whole(entry.step) },
    { name: "event", text: true, cell: (entry) => KINDS[entry.kind] ?? entry.kind },
    { name: "", text: true, wrap: true, cell: (entry) => entry.text },
  ];
  return section("Warnings and errors", table(columns, lines, "Warnings and errors"));
}

const NAMES_OF_RUNS = ["name", "run_dir", "resume"]; // settings that tell runs apart, and not how they train

/** Returns the settings in which runs differ. */
function differences(runs) {
  if (runs.length < 2) return null;
  const keys = settingsOf(runs);
  const differ = keys.filter((key) => !NAMES_OF_RUNS.includes(key) && new Set(runs.map(({ data }) => data.settings[key])).size > 1);
  if (differ.length === 0) return section("Settings that differ", element("p", { class: "soft" }, "All settings are the same."));
  return section("Settings that differ", settingsTable(runs, differ, "Settings that differ"));
}

/** Returns the keys of the settings of some runs. Those of phases come last, phase by phase. */
function settingsOf(runs) {
  const keys = [...new Set(runs.flatMap(({ data }) => Object.keys(data.settings)))];
  const named = (key) => (key.startsWith("phases.") ? key.split(".")[1] : "");
  const phases = ["", ...new Set(keys.map(named))];
  return keys.sort((one, other) => phases.indexOf(named(one)) - phases.indexOf(named(other)));
}

function settingsTable(runs, keys, label) {
  const columns = [
    { name: "setting", text: true, cell: (key) => element("code", {}, key) },
    ...runs.map((run) => ({ name: runName(run), text: true, wrap: true, cell: (key) => element("code", {}, run.data.settings[key] ?? "unset") })),
  ];
  return table(columns, keys, label);
}

function allSettings(runs) {
  const keys = settingsOf(runs);
  if (keys.length === 0) return null;
  return element("section", { class: "card" }, element("details", {}, element("summary", {}, `All settings (${keys.length})`), settingsTable(runs, keys, "All settings")));
}

function texts(runs) {
  const found = runs.flatMap((run) => (run.data.texts ?? []).map((sample) => ({ ...sample, run })));
  if (found.length === 0) return null;
  return section("Texts that the model wrote", found.map((sample) => element("div", { class: "text-sample" },
    element("div", { class: "soft" }, runs.length > 1 ? [...runName(sample.run), " · "] : "", `step ${whole(sample.step)}${sample.note ? ` · ${sample.note}` : ""}`),
    element("span", { class: "soft" }, sample.prompt), sample.text)));
}

/** Returns the sections below the charts. */
function tables(runs) {
  const several = runs.length > 1;
  return [
    differences(runs),
    spentTable(runs),
    ...runs.map((run) => stagesTable(run, several)),
    logTable(runs),
    texts(runs),
    allSettings(runs),
  ].filter(Boolean);
}
