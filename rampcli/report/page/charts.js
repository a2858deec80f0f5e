"use strict";
// One chart: its card, its curves, its crosshair and its legend.

const HEIGHT = 190;
const AXIS_FONT = "11px system-ui, sans-serif";
const SYNC = "page";

class Chart {
  /**
   * @param spec what the chart shows, see panels.js.
   * @param page is asked to `zoom(range)` and told `point(axisValue)`.
   */
  constructor(spec, page) {
    this.spec = spec;
    this.page = page;
    this.plot = null;
    this.shape = "";
    this.keys = [];
    this.legend = element("div", { class: "legend" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.host = element("div", { class: "plot", role: "img", tabindex: "0", keydown: (event) => this.press(event) });
    this.card = element("figure", { class: spec.wide ? "card wide" : "card", "data-chart": spec.id },
      element("header", {}, element("h3", {}, spec.title), element("span", { class: "unit" }, spec.unit ?? "")),
      this.legend, this.host);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.host);
  }

  /** Shows runs in a view. Returns whether there was anything to show. */
  show(runs, view) {
    const curves = this.spec.curves(runs, view).filter((curve) => curve.x.length > 0);
    this.runs = runs;
    this.view = view;
    this.range = this.spec.range?.(curves, view) ?? rangeOf(runs, view);
    this.card.hidden = curves.length === 0;
    if (curves.length === 0) return false;
    const drawn = view.smooth > 0 && this.spec.smooth ? withSmoothed(curves, view.smooth, this.range) : curves;
    const { tables, series, bands } = laidOut(drawn);
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    this.keys = drawn.filter((curve) => curve.label !== null);
    this.isLog = Boolean(view.log && this.spec.log);
    const shape = JSON.stringify([series.map((one) => one.shape), this.isLog]);
    if (shape !== this.shape) {
      this.plot?.destroy();
      this.plot = new uPlot(this.options(series, bands), data, this.host);
      this.plot.over.append(this.tip);
      this.shape = shape;
    } else {
      this.plot.setData(data);
    }
    this.showLegend(null);
    this.describe();
    return true;
  }

  options(series, bands) {
    const { spec } = this;
    const axis = {
      font: AXIS_FONT,
      stroke: () => colour("axis"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { show: false },
    };
    const ownAxis = spec.ownAxis;
    return {
      width: this.host.clientWidth || 360,
      height: spec.height ?? HEIGHT,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: () => this.range },
        y: { distr: this.isLog ? 3 : 1, range: this.isLog ? logRange : linearRange(spec.fromZero, spec.headroom) },
      },
      axes: [
        {
          ...axis, size: 24, gap: 4, space: 70, incrs: undefined,
          splits: this.xTicks(),
          values: (chart, ticks) => ticks.map(ownAxis ?? ((tick) => AXES[this.view.axis].tick(tick))),
        },
        {
          ...axis, size: 52, gap: 6, space: 32,
          splits: this.isLog ? logTicks : spec.ticks,
          filter: this.isLog ? (chart, ticks) => ticks : undefined,
          incrs: spec.wholeTicks ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] : undefined,
          values: (chart, ticks) => ticks.map((tick) => spec.tick?.(tick) ?? spec.show(tick)),
        },
      ],
      series: [{}, ...series.map((one) => one.options)],
      bands,
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: !ownAxis, y: false, setScale: false },
        bind: { dblclick: () => () => (ownAxis ? null : this.page.zoom(null)) },
        sync: ownAxis ? undefined : { key: SYNC, scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      },
      hooks: {
        drawAxes: [(chart) => (ownAxis ? null : drawMarks(chart, this.runs, this.view))],
        draw: [(chart) => spec.draw?.(chart, this.runs, this.view)],
        setSelect: [(chart) => this.select(chart)],
        setCursor: [(chart) => this.point(chart)],
      },
    };
  }

  /** Returns ticks of the horizontal axis; undefined leaves them to uPlot. */
  xTicks() {
    if (this.spec.ownAxis) return undefined;
    return (chart, axis, low, high) => {
      if (this.view.axis === "time") return timeTicks(chart, low, high);
      const ticks = evenTicks(low, high, mostTicks(chart));
      return ticks.filter((tick) => Number.isInteger(tick));
    };
  }

  select(chart) {
    const { left, width } = chart.select;
    if (width < 4) return;
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.page.zoom([chart.posToVal(left, "x"), chart.posToVal(left + width, "x")]);
  }

  point(chart) {
    const { left } = chart.cursor;
    const inside = left !== undefined && left >= 0;
    this.showLegend(inside ? chart.posToVal(left, "x") : null);
    if (this.spec.ownAxis) return;
    const isHere = inside && chart.over.matches(":hover");
    const text = isHere ? markAt(chart, left, this.runs, this.view) : null;
    this.tip.hidden = text === null;
    if (text !== null) {
      this.tip.textContent = text;
      const room = chart.over.clientWidth;
      this.tip.style.left = left < room / 2 ? `${left + 10}px` : "auto";
      this.tip.style.right = left < room / 2 ? "auto" : `${room - left + 10}px`;
    }
    if (isHere || !inside) this.page.point(inside ? chart.posToVal(left, "x") : null);
  }

  /** Shows the values at a place, or the last values if it is null. */
  showLegend(at) {
    const keys = this.keys.map((curve) => {
      const text = curve.summary && at === null ? curve.summary : valueAt(curve, at, this.spec.show);
      if (curve.node) {
        curve.value.textContent = text;
        return curve.node;
      }
      curve.value = element("b", {}, text);
      const name = this.keys.length === 1 && !curve.always ? null : element("span", { title: curve.label }, curve.label);
      const style = ["swatch", curve.style].filter(Boolean).join(" ");
      curve.node = element("span", { class: "key" },
        element("i", { class: style, swatch: `var(--${curve.colour})` }), name, curve.value);
      return curve.node;
    });
    if (at === null || this.legend.childElementCount !== keys.length) fill(this.legend, keys);
  }

  /** Says in words what the chart shows, for people who do not see it. */
  describe() {
    const parts = this.keys.map((curve) => {
      const values = curve.y.filter((value) => value !== null);
      if (values.length === 0) return `${curve.label}: no values`;
      const show = this.spec.show;
      const [least, most] = values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
      return `${curve.label}: from ${show(values[0])} to ${show(values[values.length - 1])}, least ${show(least)}, most ${show(most)}`;
    });
    this.host.setAttribute("aria-label", `${this.spec.title}. ${parts.join(". ")}`);
  }

  /** Moves the crosshair with the arrow keys; Escape shows everything again. */
  press(event) {
    if (event.key === "Escape") this.page.zoom(null);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.plot) return;
    event.preventDefault();
    const width = this.plot.over.clientWidth;
    const left = Math.min(width, Math.max(0, (this.plot.cursor.left ?? 0) + step * (event.shiftKey ? width / 10 : width / 100)));
    this.plot.setCursor({ left, top: 10 });
    if (!this.spec.ownAxis) this.page.point(this.plot.posToVal(left, "x"));
  }

  resize() {
    const width = this.host.clientWidth;
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) >= 1) {
      this.plot.setSize({ width, height: this.spec.height ?? HEIGHT });
    }
  }

  redraw() {
    this.plot?.redraw(false);
  }
}

/** Returns the range of the horizontal axis: what is zoomed to, or all that was trained. */
function rangeOf(runs, view) {
  if (view.range) return view.range;
  const edges = runs.map(({ data }) => data.trained.edges[view.axis]).filter((one) => one.length > 0);
  if (edges.length === 0) return [0, 1];
  const low = Math.min(...edges.map((one) => one[0]));
  const high = Math.max(...edges.map((one) => one[one.length - 1]));
  return high > low ? [low, high] : [low - 1, high + 1];
}

/** Returns curves that are drawn faintly, and in front of them the same curves smoothed. */
function withSmoothed(curves, share, range) {
  return curves.flatMap((curve) => {
    if (!curve.smooth) return [curve];
    const y = smoothed(curve.x, curve.y, share, range);
    return [{ ...curve, label: null, opacity: 0.3, width: 1 }, { ...curve, y, low: null, high: null, width: 2 }];
  });
}

/** Returns curves as uPlot wants them: tables to join, options of each series, and bands. */
function laidOut(curves) {
  const tables = [];
  const series = [];
  const bands = [];
  for (const curve of curves) {
    const kept = increasing(curve.x);
    const take = (values) => (kept === null ? values : kept.map((index) => values[index]));
    const lines = [take(curve.y)];
    const look = {
      stroke: () => colour(curve.colour, curve.opacity ?? 1),
      width: curve.width ?? 1.6,
      dash: curve.style === "dashed" ? [5, 4] : undefined,
      points: curve.dots ? { show: true, size: 5, width: 1.5, fill: () => colour("card"), stroke: () => colour(curve.colour) } : { show: false },
      paths: curve.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      fill: curve.area ? () => colour(curve.area, curve.areaOpacity ?? 1) : undefined,
    };
    series.push({ shape: [curve.label, curve.colour, curve.style, curve.stepped, curve.width, curve.opacity, curve.dots], options: look });
    if (curve.low) {
      lines.push(take(curve.high), take(curve.low));
      const hidden = { stroke: () => "transparent", width: 0, points: { show: false } };
      bands.push({ series: [series.length + 1, series.length + 2], fill: () => colour(curve.colour, 0.17) });
      series.push({ shape: "high", options: hidden }, { shape: "low", options: hidden });
    }
    tables.push([take(curve.x), ...lines]);
  }
  return { tables, series, bands };
}

/** Returns the places where `x` increases, or null if it does everywhere. */
function increasing(x) {
  const kept = [];
  let last = -Infinity;
  x.forEach((value, index) => {
    if (value !== null && value > last) {
      kept.push(index);
      last = value;
    }
  });
  return kept.length === x.length ? null : kept;
}

function valueAt(curve, at, show) {
  let index = curve.x.length - 1;
  if (at === null) {
    while (index > 0 && curve.y[index] === null) index--;
  } else {
    index = nearest(curve.x, at);
    if (curve.stepped && curve.x[index] > at && index > 0) index--;
    if (at < curve.x[0] && curve.stepped) return "–";
  }
  const value = curve.y[index];
  return value === null || value === undefined ? "–" : show(value);
}
