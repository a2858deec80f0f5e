"use strict";
// Which charts there are, and which curves of the runs each of them shows.

/** Returns the curves of the columns of metrics.jsonl that a chart draws, as the runs declare them. */
function columnCurves(chart) {
  return (runs, view) => runs.flatMap(({ data, slot }) => {
    const columns = Object.entries(data.charts.find((one) => one.id === chart.id)?.columns ?? {});
    return columns.flatMap(([name, label], index) => {
      const column = data.series.columns[name];
      if (!column) return [];
      const values = {
        x: data.series.x[view.axis], y: positive(column.mean, chart, view),
        low: column.low && positive(column.low, chart, view), high: column.high && positive(column.high, chart, view),
      };
      return [{
        ...(view.axis === "time" ? withPauses(values, marksOf(data, "start", "time")) : values),
        label: labelOf(runs, data, label, columns.length > 1),
        colour: runColour(runs.length > 1 ? slot : index), style: runs.length > 1 && index > 0 ? "dashed" : null,
        smooth: chart.smooth,
      }];
    });
  });
}

/** Returns values over time with a null at each start, so that no line is drawn over a pause. */
function withPauses(values, starts) {
  const { x } = values;
  const pauses = starts.map((mark) => mark.x).filter((at) => at > x[0] && at < x[x.length - 1]);
  if (pauses.length === 0) return values;
  const at = [...x, ...pauses];
  const order = [...at.keys()].sort((one, other) => at[one] - at[other]);
  const take = (column) => column && order.map((index) => column[index] ?? null);
  return { x: order.map((index) => at[index]), y: take(values.y), low: take(values.low), high: take(values.high) };
}

/** Returns values without those that a logarithmic axis cannot show. */
function positive(values, more, view) {
  return more.log && view.log ? values.map((value) => (value > 0 ? value : null)) : values;
}

function labelOf(runs, data, label, several) {
  if (runs.length === 1) return label;
  return several ? `${data.name} · ${label}` : data.name;
}

/** Returns curves of validations and evaluations. `select` maps a name to a label, or to null. */
function eventCurves(select) {
  return (runs, view) => runs.flatMap(({ data, slot }) =>
    Object.entries(data.curves).flatMap(([name, curve]) => {
      const label = select(name);
      if (label === null) return [];
      const index = Object.keys(data.curves).indexOf(name);
      return [{
        x: curve.x[view.axis], y: curve.y, label: labelOf(runs, data, label, true), dots: true,
        colour: runColour(runs.length > 1 ? slot : 1 + index), style: "dashed", always: true, width: 1.4,
      }];
    }));
}

function together(...parts) {
  return (runs, view) => parts.flatMap((part) => part(runs, view));
}

/** Returns curves, and others beside them if there are any. */
function beside(curves, others) {
  return (runs, view) => {
    const found = curves(runs, view);
    return found.length ? [...found, ...others(runs, view)] : [];
  };
}

/**
 * Returns the staircases of the runs, as planned and as trained. `planned` and `trained` return the
 * height of a stage.
 */
function stairs(planned, trained) {
  return (runs, view) => runs.flatMap(({ data, slot }) => {
    const plan = plannedStairs(data, view.axis, planned);
    const edges = data.trained.edges[view.axis];
    const steps = data.trained.parts.map((part) => trained(part, data));
    const several = runs.length > 1;
    const curves = [];
    if (plan) {
      curves.push({
        ...plan, label: several ? null : "planned", colour: several ? runColour(slot) : "planned-line",
        style: several ? "dashed" : "area", stepped: true, width: several ? 1 : 1.2, opacity: several ? 0.6 : 1,
        area: several ? null : "planned", always: true,
      });
    }
    if (steps.length && steps[0] !== null) {
      curves.push({
        x: edges, y: [...steps, steps[steps.length - 1]], label: several ? data.name : "trained",
        colour: runColour(slot), stepped: true, width: 2.4, always: true,
      });
    }
    return curves;
  });
}

/** Returns the noise scales of the runs with their intervals, and a lower end that is known alone. */
function noiseCurves(runs, view) {
  return runs.flatMap(({ data, slot }) => {
    const { noise_scale, noise_scale_low, noise_scale_high } = data.series.columns;
    if (!noise_scale_low) return [];
    const known = noise_scale_low.mean.flatMap((low, index) => (low === null ? [] : [index]));
    const take = (column) => positive(known.map((index) => column?.mean[index] ?? null), { log: true }, view);
    const [scale, low, high] = [noise_scale, noise_scale_low, noise_scale_high].map(take);
    const curve = { x: known.map((index) => data.series.x[view.axis][index]), colour: runColour(runs.length > 1 ? slot : 1), always: true };
    const isInRange = (at) => !view.range || (view.range[0] <= at && at <= view.range[1]);
    const bound = low.map((value, index) => (scale[index] === null && isInRange(curve.x[index]) ? value : null));
    return [
      { ...curve, y: scale, low, high, label: labelOf(runs, data, "noise scale", true) },
      ...(bound.some((value) => value !== null) ? [{ ...curve, y: bound, style: "dashed", label: labelOf(runs, data, "at least", true) }] : []),
    ];
  });
}

const OPEN_SHARE = 1.25; // how far an open last stage is drawn

function plannedStairs(data, axis, value) {
  const stages = data.plan?.stages ?? [];
  const values = stages.map(value);
  if (axis === "time" || stages.length === 0 || values.includes(null) || values.includes(undefined)) return null;
  const first = axis === "steps" ? "first_step" : "first_sample";
  const length = axis === "steps" ? "steps" : "samples";
  if (axis === "tokens" && data.unit === "prompts") return null;
  const place = axis === "tokens" ? (samples) => tokensAt(data.plan, samples) : (count) => count;
  const last = stages[stages.length - 1];
  const trained = data.trained.edges[axis];
  const open = Math.max(place(last[first]) * OPEN_SHARE, trained[trained.length - 1] ?? 0, place(last[first] + last.global_batch_size));
  const end = last[length] === null ? open : place(last[first] + last[length]);
  return { x: [...stages.map((stage) => place(stage[first])), end], y: [...values, values[values.length - 1]] };
}

/** Returns the tokens in the first samples of a run, whose phases may differ in the length of samples. */
function tokensAt(plan, samples) {
  const phase = (plan.phases ?? []).findLast((one) => one.first_sample <= samples);
  return phase ? phase.first_token + (samples - phase.first_sample) * phase.sequence_length : samples * plan.sequence_length;
}

/** Returns whether samples differ in length within or between runs, some of which have phases. */
function hasSeveralLengths(runs) {
  const plans = runs.flatMap(({ data }) => (data.unit === "prompts" ? [] : data.plan ?? []));
  const lengths = plans.flatMap((plan) => plan.phases ?? plan).map((one) => one.sequence_length).filter(Boolean);
  return plans.some((plan) => plan.phases) && new Set(lengths).size > 1;
}

/** Returns processes per node as planned, or null. */
function processesPerNode(data) {
  const stage = (data.plan?.stages ?? []).find((one) => one.num_nodes && one.world_size);
  return stage ? stage.world_size / stage.num_nodes : null;
}

function trainedNodes(part, data) {
  const each = processesPerNode(data);
  return each === null ? part.world_size : Math.ceil(part.world_size / each);
}

/** Draws the planned phases and batch sizes. */
function drawStages(chart, runs, view) {
  drawPhases(chart, runs, view);
  drawSizes(chart, runs, view);
}

/** Writes the planned batch sizes above their steps, where there is room. */
function drawSizes(chart, runs, view) {
  if (runs.length !== 1) return;
  const plan = plannedStairs(runs[0].data, view.axis, (stage) => stage.global_batch_size);
  if (plan === null) return;
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillStyle = colour("soft");
  ctx.textAlign = "center";
  for (let index = 0; index + 1 < plan.x.length; index++) {
    const left = Math.max(bbox.left, chart.valToPos(plan.x[index], "x", true));
    const right = Math.min(bbox.left + bbox.width, chart.valToPos(plan.x[index + 1], "x", true));
    const text = plan.y[index].toLocaleString("en-US");
    if (right - left < ctx.measureText(text).width + 4 * devicePixelRatio) continue;
    ctx.fillText(text, (left + right) / 2, chart.valToPos(plan.y[index], "y", true) - 7 * devicePixelRatio);
  }
  ctx.restore();
}

/** Returns the column that says where a phase begins on an axis, or undefined. */
function firstOfPhase(data, axis) {
  if (axis === "tokens" && data.unit === "prompts") return undefined;
  return { samples: "first_sample", steps: "first_step", tokens: "first_token" }[axis];
}

/** Returns the name of a stage's phase, or null in a run without phases. */
function phaseOf(data, stage) {
  return (data.plan?.phases ?? []).findLast((one) => one.first_stage <= stage)?.name ?? null;
}

/** Returns the name of the phase at a place on the horizontal axis, or null. */
function phaseAt(data, axis, at) {
  const first = firstOfPhase(data, axis);
  if (first) return (data.plan?.phases ?? []).findLast((one) => one[first] <= at)?.name ?? null;
  const { edges, parts } = data.trained;
  const part = parts[edges[axis].findLastIndex((edge) => edge <= at)];
  return part ? phaseOf(data, part.stage) : null;
}

/** Draws a line where each planned phase begins, and writes its name beside it, where there is room. */
function drawPhases(chart, runs, view) {
  if (runs.length !== 1) return;
  const first = firstOfPhase(runs[0].data, view.axis);
  if (!first) return;
  const { ctx, bbox } = chart;
  const pixel = devicePixelRatio;
  const [low, high] = [bbox.left, bbox.left + bbox.width];
  const phases = runs[0].data.plan?.phases ?? [];
  const places = [...phases.map((phase) => chart.valToPos(phase[first], "x", true)), high];
  ctx.save();
  ctx.font = `${11 * pixel}px system-ui, sans-serif`;
  ctx.fillStyle = colour("soft");
  ctx.textAlign = "left";
  phases.forEach(({ name }, index) => {
    const [begin, end] = [Math.max(low, places[index]), Math.min(high, places[index + 1])];
    if (begin >= end) return;
    if (begin > low) verticalLine(ctx, Math.round(begin), bbox, colour("axis", 0.75), pixel, []);
    const text = begin + 4 * pixel;
    if (text + ctx.measureText(name).width < end) ctx.fillText(name, text, bbox.top + bbox.height - 8 * pixel);
  });
  ctx.restore();
}

function stairsRange(curves, view) {
  if (view.range) return view.range;
  const [low, high] = outermost(curves);
  return [view.axis === "time" ? low : 0, high];
}

function outermost(curves) {
  return [Math.min(...curves.map((curve) => curve.x[0])), Math.max(...curves.map((curve) => curve.x[curve.x.length - 1]))];
}

function histogramCurves(runs) {
  return runs.flatMap(({ data, slot }) => {
    const found = data.histogram;
    if (!found) return [];
    const counted = found.counts.reduce((sum, count) => sum + count, 0) || 1;
    const slower = found.slower ? `, longest ${duration(found.most)}` : "";
    const of = found.stride > 1 ? `, of every ${whole(found.stride)}th step` : "";
    return [{
      x: found.edges, y: [...found.counts, 0].map((count) => count / counted), label: data.name,
      colour: runColour(slot), stepped: true, area: runColour(slot), areaOpacity: 0.2, width: 1.5,
      summary: `median ${duration(found.median)}${slower}${of}`, always: runs.length > 1,
    }];
  });
}

const SHOWN = { s: { show: duration, tick: shortDuration }, share: { show: percent }, bytes: { show: bytes, ticks: byteTicks } }; // by unit
const SPECIAL = new Map(Object.entries({
  batch: {
    wide: true, height: 180, show: whole, tick: compact, range: stairsRange, draw: drawStages, wholeTicks: true, headroom: 0.14,
    curves: stairs((stage) => stage.global_batch_size, (part) => part.global_batch_size),
  },
  noise_scale: { wide: true, curves: beside(noiseCurves, stairs(() => null, (part) => part.global_batch_size)) },
  nodes: {
    wide: true, height: 92, show: whole, wholeTicks: true, headroom: 0.2, range: stairsRange,
    curves: stairs((stage) => stage.num_nodes, trainedNodes),
  },
  reward: { beside: eventCurves((name) => ({ greedy: "held out, greedy", sampled: "held out, sampled" })[name] ?? null) },
  solved: { beside: eventCurves((name) => ({ greedy_solved: "held out, greedy", sampled_solved: "held out, sampled" })[name] ?? null) },
  loss: { beside: eventCurves((name) => (name.startsWith("validation") ? name : null)) },
  bits: { curves: eventCurves((name) => (name.startsWith("bits per byte") ? name : null)) },
  histogram: { show: percent, curves: histogramCurves, ownAxis: shortDuration, range: outermost },
})); // what charts show that is not a curve of columns, by their ids

/** Returns what a chart shows, from its declaration in the data of a run. */
function specOf(chart) {
  const { beside: others, ...special } = SPECIAL.get(chart.id) ?? {};
  const columns = columnCurves(chart);
  return { ...chart, show: compact, ...SHOWN[chart.show], fromZero: chart.from_zero, curves: others ? together(columns, others) : columns, ...special };
}
