"use strict";
// Numbers, durations and places as people read them.

const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]];

/** Returns a number with about four digits: 3.051, 5,703, 26.6K. */
function compact(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  if (size >= 1e5) {
    const rounded = Number(size.toPrecision(3)); // 999,999 is 1M, not 1000K
    const [unit, letter] = UNITS.find(([least]) => rounded >= least);
    return trimmed(value / unit, 3) + letter;
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return trimmed(value, 4);
}

function trimmed(value, digits) {
  const text = value.toPrecision(digits);
  if (text.includes("e")) return String(Number(text));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : String(Number(text));
}

/** Returns a whole number in full: 1,024,000. */
function whole(value) {
  return Math.round(value).toLocaleString("en-US");
}

/** Returns a share as a percentage: 41.3%. */
function percent(value) {
  if (value > 0 && value < 1e-4) return "<0.01%";
  return `${trimmed(value * 100, 3)}%`;
}

/** Returns bytes in binary units: 39.2 GiB. */
function bytes(value) {
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${trimmed(size, 3)} ${unit}`;
    size /= 1024;
  }
  return `${trimmed(size, 3)} TiB`;
}

/** Returns a duration: 250 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h. */
function duration(seconds) {
  if (Math.abs(seconds) < 1e-9) return "0 s";
  if (Math.abs(seconds) < 1e-3) return `${trimmed(seconds * 1e6, 3)} µs`;
  if (Math.abs(seconds) < 1) return `${trimmed(seconds * 1000, 3)} ms`;
  if (Math.abs(seconds) < 60) return `${trimmed(seconds, 3)} s`;
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  const [large, name, small, rest] = steps.find(([least]) => Math.abs(seconds) >= least);
  let count = Math.floor(seconds / large);
  let remainder = Math.round((seconds - count * large) / small);
  if (remainder * small === large) [count, remainder] = [count + 1, 0];
  return remainder ? `${count} ${name} ${remainder} ${rest}` : `${count} ${name}`;
}

/** Returns how long ago a time in seconds since 1970 was. */
function ago(time) {
  const seconds = Math.max(0, Date.now() / 1000 - time);
  return seconds < 5 ? "just now" : `${duration(Math.round(seconds)).split(" ").slice(0, 2).join(" ")} ago`;
}

/** Returns a date and time of this reader's clock. */
function clock(time) {
  const date = new Date(time * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

const AXES = {
  samples: { label: "samples", show: whole, tick: compact },
  tokens: { label: "tokens", show: compact, tick: compact },
  steps: { label: "steps", show: whole, tick: compact },
  time: { label: "time since the start", show: duration, tick: shortDuration },
};

/** Returns a duration for a tick, in one unit if it is whole: 30s, 5m, 2h, 1h30. */
function shortDuration(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 60) return `${trimmed(seconds, 3)}s`;
  if (seconds < 3600) {
    const rest = Math.round(seconds % 60);
    return rest ? `${Math.floor(seconds / 60)}m${String(rest).padStart(2, "0")}` : `${Math.floor(seconds / 60)}m`;
  }
  if (seconds < 86400) {
    const rest = Math.round((seconds % 3600) / 60);
    return rest ? `${Math.floor(seconds / 3600)}h${String(rest).padStart(2, "0")}` : `${Math.floor(seconds / 3600)}h`;
  }
  return `${trimmed(seconds / 86400, 3)}d`;
}

/** Returns the label of an axis. Runs of reinforcement learning count prompts rather than samples. */
function axisLabel(axis, runs) {
  const prompts = axis === "samples" && runs.length > 0 && runs.every(({ data }) => data.unit === "prompts");
  return prompts ? "prompts" : AXES[axis].label;
}
