"use strict";
// Marks in charts: where a stage begins, a checkpoint is saved, a run restarts.

const MARKS = {
  stage: { label: "stages", colour: "axis" },
  checkpoint: { label: "checkpoints", colour: "good" },
  validation: { label: "validations", colour: "run-4" },
  restart: { label: "restarts", colour: "bad" },
  skip: { label: "skipped steps", colour: "warn" },
};
const DEFAULT_MARKS = ["stage", "checkpoint", "restart", "skip"];
const CLOSEST = 5; // pixels between two marks of a kind that are both drawn
const REACH = 6; // pixels from a mark within which its text is shown

/** Draws the marks of the runs that are on, behind the curves. */
function drawMarks(chart, runs, view) {
  const { ctx, bbox } = chart;
  const pixel = devicePixelRatio;
  ctx.save();
  for (const [kind, mark] of Object.entries(MARKS)) {
    if (!view.marks.includes(kind)) continue;
    for (const { data, slot } of runs) {
      const line = runs.length > 1 && kind === "stage" ? runColour(slot) : mark.colour;
      let last = -Infinity;
      for (const { x } of marksOf(data, kind, view.axis)) {
        const at = chart.valToPos(x, "x", true);
        if (at < bbox.left || at > bbox.left + bbox.width || at - last < CLOSEST * pixel) continue;
        last = at;
        DRAWN[kind](ctx, Math.round(at), bbox, pixel, colour(line, 0.75));
      }
    }
  }
  ctx.restore();
}

/** Returns places and texts of the marks of a kind, sorted by place. Runs that resume go back. */
function marksOf(data, kind, axis) {
  const marks = data.marks[kind];
  if (!marks) return [];
  const found = marks.x[axis].map((x, index) => ({ x, text: marks.text[index] }));
  return found.filter(({ x }) => x !== null).sort((one, other) => one.x - other.x);
}

const DRAWN = {
  stage: (ctx, x, box, pixel, style) => verticalLine(ctx, x, box, style, pixel, [3 * pixel, 3 * pixel]),
  restart: (ctx, x, box, pixel, style) => {
    verticalLine(ctx, x, box, style, 1.5 * pixel, []);
    triangle(ctx, x, box.top, 4 * pixel, 1, style);
  },
  checkpoint: (ctx, x, box, pixel, style) => triangle(ctx, x, box.top + box.height, 3.5 * pixel, -1, style),
  validation: (ctx, x, box, pixel, style) => {
    ctx.fillStyle = style;
    ctx.fillRect(x - pixel, box.top + box.height - 6 * pixel, 2 * pixel, 6 * pixel);
  },
  skip: (ctx, x, box, pixel, style) => {
    const [size, y] = [3 * pixel, box.top + 6 * pixel];
    ctx.strokeStyle = style;
    ctx.lineWidth = 1.5 * pixel;
    ctx.setLineDash([]);
    ctx.beginPath();
    for (const side of [-1, 1]) {
      ctx.moveTo(x - size, y - side * size);
      ctx.lineTo(x + size, y + side * size);
    }
    ctx.stroke();
  },
};

function verticalLine(ctx, x, box, style, width, dash) {
  ctx.strokeStyle = style;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x, box.top);
  ctx.lineTo(x, box.top + box.height);
  ctx.stroke();
}

function triangle(ctx, x, y, size, direction, style) {
  ctx.fillStyle = style;
  ctx.beginPath();
  ctx.moveTo(x - size, y);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + direction * size * 1.5);
  ctx.fill();
}

/** Returns the text of the mark under the pointer, or null. */
function markAt(chart, left, runs, view) {
  let best = null;
  let distance = REACH;
  for (const kind of Object.keys(MARKS).filter((one) => view.marks.includes(one))) {
    for (const { data } of runs) {
      for (const { x, text } of marksOf(data, kind, view.axis)) {
        const away = Math.abs(chart.valToPos(x, "x") - left);
        if (away < distance || (away === distance && kind === "restart")) {
          distance = away;
          best = runs.length > 1 ? `${data.name}: ${text}` : text;
        }
      }
    }
  }
  return best;
}

/** Returns a small picture of a mark for its switch. */
function markPicture(kind) {
  const canvas = element("canvas", { class: "mark", "aria-hidden": "true" });
  const pixel = Math.max(1, devicePixelRatio);
  [canvas.width, canvas.height] = [10 * pixel, 11 * pixel];
  const box = { left: 0, top: 0.5 * pixel, width: 10 * pixel, height: 10 * pixel };
  const ctx = canvas.getContext("2d");
  DRAWN[kind](ctx, 5 * pixel, box, pixel, colour(MARKS[kind].colour));
  return canvas;
}
