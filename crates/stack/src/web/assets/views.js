// The pages about all services: the overview, and the caches of their processes.
//
// A view has a title, a node, and a function that shows a model: the overview, the details of the
// service that the view is about, and the history of rates.

import { Chart } from "./chart.js";
import { Facts, Share, Table, el, keyed, section, setText } from "./elements.js";
import * as format from "./format.js";

/** Key of the sums of all services in the history. */
export const ALL = "all";

/** Key of a service in the history. */
export const ofService = (name) => `service/${name}`;

/** Key of a process' cache in the history. */
export const ofCache = (pid) => `cache/${pid}`;

/** Returns the address of the page of a service. */
export const toService = (name) => `#/service/${name}`;

/** Charts of the requests of a service, or of all. */
export function ioCharts() {
  const bytes = [
    { name: "Read", key: "readBytes" },
    { name: "Written", key: "writeBytes" },
  ];
  const requests = [
    { name: "Reads", key: "reads" },
    { name: "Writes", key: "writes" },
  ];
  const latency = [{ name: "Mean", key: "latency" }];
  return [
    new Chart("Bytes per second", bytes, format.byteRate, true),
    new Chart("Requests per second", requests, format.rate),
    new Chart("Latency of requests", latency, format.nanoseconds),
  ];
}

/** Arranges charts. */
export function arranged(charts) {
  return el("div", { class: "charts" }, ...charts.map((chart) => chart.node));
}

const isStatus = (volume) => volume.error === undefined;

function states(volumes) {
  if (volumes.length === 0) return "Nothing is attached, mounted or served.";
  const counts = new Map();
  for (const volume of volumes) {
    const state = format.state(volume);
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  const parts = [...counts].map(([state, count]) => `${count} ${state}`);
  const services = volumes.length === 1 ? "1 service" : `${volumes.length} services`;
  return `${services}: ${parts.join(", ")}.`;
}

/** Lists LUNs, each with the service that has it open. */
const lunsOf = (volumes) => volumes.filter((volume) => typeof volume.lun === "string");

/** The page of all services. */
export function overview() {
  let history;
  const lead = el("p", { class: "lead" });
  const io = (volume, key) => history.last(ofService(volume.name))?.[key];
  const services = new Table("Services", [
    { name: "Name", cell: (v) => ({ text: v.name, href: toService(v.name) }) },
    { name: "State", cell: (v) => ({ text: format.state(v), badge: true }) },
    { name: "Kind", cell: (v) => (isStatus(v) ? format.kind(v) : format.UNKNOWN) },
    { name: "Size", look: "number", cell: (v) => format.bytes(v.size) },
    { name: "Used", look: "number", cell: (v) => format.percent(format.usedShare(v.space)) },
    { name: "Dirty", look: "number", cell: (v) => format.bytes(v.write_back?.dirty_bytes) },
    { name: "Read", look: "number", cell: (v) => format.byteRate(io(v, "readBytes")) },
    { name: "Written", look: "number", cell: (v) => format.byteRate(io(v, "writeBytes")) },
    { name: "Requests", look: "number", cell: (v) => format.rate(io(v, "requests")) },
    { name: "Errors", look: "number", cell: (v) => format.count(v.health?.errors) },
    { name: "Uptime", look: "number", cell: (v) => format.seconds(v.uptime_seconds) },
    { name: "Device", look: "long", cell: (v) => format.plain(v.device) },
  ]);
  const charts = ioCharts();
  const luns = new Table("LUNs", [
    { name: "LUN", cell: (v) => ({ text: v.lun, href: `#/lun/${encodeURIComponent(v.lun)}` }) },
    { name: "Health", cell: (v) => format.plain(v.lun_state?.health) },
    { name: "Paths", look: "number", cell: (v) => format.count(v.health?.paths) },
    { name: "Failed", look: "number", cell: (v) => format.count(v.health?.paths_failed) },
    { name: "Service", cell: (v) => ({ text: v.name, href: toService(v.name) }) },
  ]);
  const cells = new Table("Cells", [
    { name: "Cell", cell: (v) => ({ text: v.cell, href: `#/cell/${v.name}` }) },
    { name: "Service", cell: (v) => ({ text: v.name, href: toService(v.name) }) },
    { name: "Address", look: "long", cell: (v) => exportPlaces(v) },
  ]);
  const [lunSection, cellSection] = [section("LUNs", luns.node), section("Cells", cells.node)];
  return {
    title: "Overview",
    node: el(
      "div",
      {},
      lead,
      services.node,
      section("All services together", arranged(charts)),
      lunSection,
      cellSection,
    ),
    update(model) {
      history = model.history;
      const { volumes } = model.overview;
      const byName = (volume) => volume.name;
      setText(lead, states(volumes));
      services.update(volumes, byName);
      for (const chart of charts) chart.update(history.points(ALL));
      const onLuns = lunsOf(volumes);
      const served = volumes.filter((volume) => typeof volume.cell === "string");
      luns.update(onLuns, byName);
      cells.update(served, byName);
      lunSection.hidden = onLuns.length === 0;
      cellSection.hidden = served.length === 0;
    },
  };
}

const exportPlaces = (volume) =>
  format.plain((volume.exports ?? []).map((place) => place.at).join(", "));

/** Counters of a cache, for the history. */
export function cacheTotals({ stats }) {
  return { hits: stats.hits, misses: stats.misses + stats.joins, writes: stats.writes };
}

/** Rates of a cache, from the differences of counters. */
export function cacheRates(d, seconds) {
  const reads = d.hits + d.misses;
  return {
    hitRatio: reads > 0 ? d.hits / reads : null,
    reads: reads / seconds,
    writes: d.writes / seconds,
  };
}

/** The page of the caches. */
export function cache() {
  const list = el("div");
  const none = el("p", {}, "No process keeps pages in memory.");
  return {
    title: "Cache",
    node: el("div", {}, list, none),
    update(model) {
      const { caches } = model.overview;
      none.hidden = caches.length > 0;
      keyed(list, caches, (one) => one.pid, (one) => oneCache(one.pid, model.history));
    },
  };
}

/** The section about the cache of a process. */
function oneCache(pid, history) {
  const used = new Share("Memory used by the cache");
  const facts = new Facts([
    ["Services", (c) => c.services.join(", ")],
    ["Dirty", (c) => format.bytes(c.stats.dirty_bytes)],
    ["Oldest dirty", (c) => oldest(c.stats.oldest_dirty_ms)],
    ["Reads from memory", (c) => format.count(c.stats.hits)],
    ["Reads from the device", (c) => format.count(c.stats.misses)],
    ["Waited for a load", (c) => format.count(c.stats.joins)],
    ["Hit ratio since the start", (c) => hitRatio(c.stats)],
    ["Pages written", (c) => format.count(c.stats.writes)],
    ["Read ahead", (c) => readAhead(c.stats)],
    ["Writers throttled", (c) => format.seconds(c.stats.throttled_ms / 1000)],
    ["Frames", (c) => c.frames],
    ["NUMA nodes", (c) => c.nodes],
    ["Swap", (c) => c.swap],
    ["Memory pressure", (c) => c.shortage],
  ]);
  const ratio = [{ name: "Hits", key: "hitRatio" }];
  const pages = [
    { name: "Reads", key: "reads" },
    { name: "Writes", key: "writes" },
  ];
  const charts = [
    new Chart("Hit ratio of reads", ratio, format.percent),
    new Chart("Pages per second", pages, format.rate),
  ];
  const settings = new Table(`Settings of process ${pid}`, [
    { name: "Setting", cell: (s) => s.name },
    { name: "Value", cell: (s) => s.value },
    { name: "Default", cell: (s) => format.plain(s.default) },
    { name: "Meaning", look: "long", cell: (s) => s.help },
  ]);
  return {
    node: section(`Process ${pid}`, used.node, facts.node, arranged(charts), settings.node),
    update(c) {
      const { used_bytes: bytes, max_bytes: max } = c.stats;
      used.update(max > 0 ? bytes / max : undefined, `${format.bytes(bytes)} of ${format.bytes(max)}`);
      facts.update(c);
      for (const chart of charts) chart.update(history.points(ofCache(pid)));
      settings.update(c.settings, (setting) => setting.name);
    },
  };
}

/** Formats the age of the oldest data in memory only; nothing without such data. */
export const oldest = (ms) => (typeof ms === "number" ? format.nanoseconds(ms * 1e6) : undefined);

function hitRatio({ hits, misses, joins }) {
  const reads = hits + misses + joins;
  return reads > 0 ? format.percent(hits / reads) : undefined;
}

function readAhead(stats) {
  const [loaded, used, wasted] = [stats.read_ahead, stats.read_ahead_used, stats.read_ahead_wasted];
  const pages = [loaded, used, wasted].map(format.count);
  return `${pages[0]} pages, ${pages[1]} used, ${pages[2]} wasted`;
}
