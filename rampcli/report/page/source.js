"use strict";
// Where the data come from: the server of a live page, or the report itself.

const BUCKETS = 1200;

/** Data of a report: all of it is in the page. */
class ReportSource {
  constructor(text) {
    this.report = JSON.parse(text);
    this.live = false;
  }

  async list() {
    return this.report.runs.map((data) => ({ name: data.name, trains: data.trains }));
  }

  async run(name) {
    return this.report.runs.find((data) => data.name === name) ?? null;
  }
}

/** Data of a live page: only what has changed is sent again. */
class LiveSource {
  constructor() {
    this.live = true;
    this.known = new Map();
  }

  async list() {
    return (await answer("api/runs")).runs;
  }

  /** Returns the data of a run in a view, or null if there is no such run. */
  async run(name, view) {
    const query = new URLSearchParams({ axis: view.axis, buckets: BUCKETS });
    if (view.range) {
      query.set("low", view.range[0]);
      query.set("high", view.range[1]);
    }
    const same = this.known.get(name);
    const asked = query.toString();
    if (same && same.asked === asked) query.set("known", same.version);
    const found = await answer(`api/run/${encodeURIComponent(name)}?${query}`);
    if (found === null) return null;
    if (found.data === null) {
      same.data.quiet = found.quiet;
      return same.data;
    }
    this.known.set(name, { asked, version: found.version, data: found.data });
    return found.data;
  }
}

async function answer(address) {
  const response = await fetch(address, { cache: "no-store" });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function findSource() {
  const inlined = document.getElementById("data");
  return inlined ? new ReportSource(inlined.textContent) : new LiveSource();
}
