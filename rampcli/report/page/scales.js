"use strict";
// Ranges and ticks of the vertical axes, and smoothing.

const LOG_STEPS = [1, 2, 3, 5];

/** Returns the range of a linear axis, with room above and below. */
function linearRange(fromZero, headroom = 0.06) {
  return (chart, least, most) => {
    if (least === null || least === undefined) return [0, 1];
    const low = fromZero ? Math.min(0, least) : least;
    const room = (most - low) * headroom || Math.abs(most) * 0.1 || 1;
    return [fromZero && low === 0 ? 0 : low - room, most + room];
  };
}

/** Returns the range of a logarithmic axis. It need not begin at a power of ten. */
function logRange(chart, least, most) {
  if (!(least > 0)) return [0.1, 1];
  const room = Math.pow(most / least, 0.06) * (most === least ? 1.2 : 1);
  return [least / room, most * room];
}

/** Returns ticks of a logarithmic axis: 1, 2, 3 and 5 of each power of ten, or even steps. */
function logTicks(chart, axis, low, high) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const steps = decades > 4 ? [1] : decades > 2 ? [1, 3] : LOG_STEPS;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const step of steps) {
      const tick = Number(`${step}e${power}`);
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length >= 3 ? ticks : evenTicks(low, high, 4);
}

/** Returns ticks of an axis of bytes at even binary sizes. */
function byteTicks(chart, axis, low, high) {
  const unit = Math.pow(1024, Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10)));
  return evenTicks(low / unit, high / unit, 4).map((tick) => tick * unit);
}

/** Returns how many labels a horizontal axis has room for. */
function mostTicks(chart) {
  const width = chart.bbox.width / devicePixelRatio;
  return Math.max(2, Math.floor(width / (width < 500 ? 58 : 95)));
}

function evenTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
    ticks.push(Number(tick.toPrecision(12)));
  }
  return ticks;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** Returns ticks of an axis of seconds at whole minutes, hours or days. */
function timeTicks(chart, low, high) {
  const most = mostTicks(chart);
  const rough = (high - low) / most;
  if (rough < 1) return evenTicks(low, high, most);
  const least = TIME_STEPS.find((one) => one >= rough) ?? Math.ceil(rough / 86400) * 86400;
  const ticks = [];
  for (let tick = Math.ceil(low / least) * least; tick <= high; tick += least) ticks.push(tick);
  return ticks;
}

/**
 * Returns a curve smoothed by an exponential average from both sides, so that it does not lag.
 * `share` is how far the average reaches, as a share of the range that is shown.
 */
function smoothed(x, y, share, range) {
  const reach = share * (range[1] - range[0]);
  if (!(reach > 0)) return y;
  const forwards = averaged(x, y, reach, 0, 1);
  const backwards = averaged(x, y, reach, x.length - 1, -1);
  return y.map((value, index) => {
    if (value === null) return null;
    const [sum, weight] = [0, 1].map((part) => forwards[part][index] + backwards[part][index]);
    return (sum - value) / (weight - 1); // the point itself is in both averages
  });
}

/** Returns sums and weights of all points up to each one, which fade with their distance. */
function averaged(x, y, reach, start, step) {
  const sums = new Float64Array(x.length);
  const weights = new Float64Array(x.length);
  let sum = 0;
  let weight = 0;
  for (let index = start; index >= 0 && index < x.length; index += step) {
    const fade = index === start ? 0 : Math.exp(-Math.abs(x[index] - x[index - step]) / reach);
    sum *= fade;
    weight *= fade;
    if (y[index] !== null) {
      sum += y[index];
      weight += 1;
    }
    sums[index] = sum;
    weights[index] = weight;
  }
  return [sums, weights];
}

/** Returns the place in sorted `x` that is nearest to a value. */
function nearest(x, value) {
  let low = 0;
  let high = x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - x[low - 1] < x[low] - value ? low - 1 : low;
}
