// The pages about one service: a volume or a mount, its LUN, and its cell.

import { Chart } from "./chart.js";
import { Facts, Share, Table, el, keyed, section, setBadge, setText } from "./elements.js";
import * as format from "./format.js";
import { arranged, ioCharts, ofService, oldest, toService } from "./views.js";

/** Key of a path of a LUN in the history. */
export const ofPath = (lun, path) => `lun/${lun}/${path}`;

/** Key of a cell in the history. */
export const ofCell = (name) => `cell/${name}`;

/** Shows a state, the reasons for it, and a warning. */
class State {
  constructor() {
    this.badge = el("span", { class: "badge" });
    this.reasons = el("ul", { class: "reasons" });
    this.error = el("p");
    this.node = el("div", {}, el("p", {}, "State: ", this.badge), this.reasons, this.error);
  }

  update(volume) {
    setBadge(this.badge, format.state(volume));
    const reasons = volume.health?.reasons ?? [];
    const line = () => {
      const node = el("li");
      return { node, update: (reason) => setText(node, reason) };
    };
    keyed(this.reasons, reasons, (reason) => reason, line);
    this.reasons.hidden = reasons.length === 0;
    const others = [volume.warning, volume.first_use].filter(Boolean);
    setText(this.error, others.join(" "));
    this.error.hidden = others.length === 0;
  }
}

const cipher = (v) =>
  v.key_bits === undefined ? "none" : `aes-${v.key_bits}-xts (${v.kernel}), role ${v.role}`;

const claim = (c) =>
  `machine ${c.machine}, epoch ${c.epoch}, lease for ${(c.lease_ms / 1000).toFixed(1)} s`;

const yes = (value) => (value === true ? "yes" : undefined);

/** The page of a service. */
export function service(name) {
  const state = new State();
  const used = new Share("Used space of the file system");
  const facts = new Facts([
    ["Kind", format.kind],
    ["Device", (v) => v.device],
    ["LUN", (v) => v.lun && { text: v.lun, href: `#/lun/${encodeURIComponent(v.lun)}` }],
    ["Cluster", (v) => v.cluster && claim(v.cluster)],
    ["Cell", (v) => v.cell && { text: v.cell, href: `#/cell/${v.name}` }],
    ["Fileset", (v) => v.fileset],
    ["Size", (v) => (v.size === undefined ? undefined : format.bytes(v.size))],
    ["Cipher", cipher],
    ["UUID", (v) => v.uuid],
    ["Label", (v) => v.label],
    ["Read-only", (v) => yes(v.read_only)],
    ["Dirty", (v) => v.write_back && format.bytes(v.write_back.dirty_bytes)],
    ["Oldest dirty", (v) => oldest(v.write_back?.oldest_dirty_ms)],
    ["Write-back error", (v) => v.write_back?.error],
    ["In-use record", (v) => v.in_use_record],
    ["Cache", (v) => (v.cached ? { text: `process ${v.pid}`, href: "#/cache" } : "none")],
    ["Process", (v) => v.pid],
    ["Version", (v) => v.version],
    ["Started", (v) => (v.since === undefined ? undefined : format.moment(v.since * 1000))],
    ["Uptime", (v) => (v.uptime_seconds === undefined ? undefined : format.seconds(v.uptime_seconds))],
    ["Log", (v) => v.log],
    ["Configuration", (v) => v.config],
  ]);
  const charts = ioCharts();
  const requests = new Table("Requests since the start", [
    { name: "Kind", cell: (r) => r.kind },
    { name: "Requests", look: "number", cell: (r) => format.count(r.requests) },
    { name: "Bytes", look: "number", cell: (r) => format.bytes(r.bytes) },
    { name: "Errors", look: "number", cell: (r) => format.count(r.errors) },
    { name: "Median", look: "number", cell: (r) => timed(r, "p50_ns") },
    { name: "99 % within", look: "number", cell: (r) => timed(r, "p99_ns") },
    { name: "Longest", look: "number", cell: (r) => timed(r, "max_ns") },
  ]);
  const places = new Table("Exports", [
    { name: "Place", cell: (e) => e.at },
    { name: "Kind", cell: (e) => e.kind },
  ]);
  const filesets = filesetTable();
  const fileSection = section("File system", used.node, filesets.node);
  const all = el(
    "div",
    {},
    facts.node,
    section("Requests", arranged(charts), requests.node),
    section("Exports", places.node),
    fileSection,
  );
  return {
    title: name,
    service: () => name,
    node: el("div", {}, state.node, all),
    update(model) {
      const { volume, usage } = model.details;
      state.update(volume);
      all.hidden = volume.error !== undefined;
      if (all.hidden) return;
      facts.update(volume);
      for (const chart of charts) chart.update(model.history.points(ofService(name)));
      const kinds = Object.entries(volume.stats ?? {}).filter(([, counts]) => counts?.requests > 0);
      requests.update(kinds.map(([kind, counts]) => ({ kind, ...counts })), (row) => row.kind);
      places.update(volume.exports ?? [], (place) => `${place.kind} ${place.at}`);
      const { space } = volume;
      fileSection.hidden = space === undefined;
      used.update(format.usedShare(space), spaceText(space));
      filesets.update(usage?.filesets ?? [], (row) => row.id);
    },
  };
}

function spaceText(space) {
  const [free, size] = [space?.available_bytes, space?.size_bytes].map(format.bytes);
  return `${format.percent(format.usedShare(space))} used, ${free} of ${size} available`;
}

const timed = (row, key) => format.nanoseconds(row[key]);

function filesetTable() {
  return new Table("Filesets", [
    { name: "Name", cell: (f) => f.name },
    { name: "Snapshot of", cell: (f) => format.plain(f.snapshot_of) },
    { name: "Created", cell: (f) => format.moment(f.created * 1000) },
    { name: "Used", look: "number", cell: (f) => format.bytes(f.used_bytes) },
    { name: "Limit", look: "number", cell: (f) => format.bytes(f.quota_bytes) },
    { name: "Inodes", look: "number", cell: (f) => format.count(f.used_inodes) },
  ]);
}

/** Finds the service that has a LUN open. */
const holder = (model, lun) => model.overview?.volumes.find((volume) => volume.lun === lun);

/** Shows an error instead of a part of the page. */
class Problem {
  constructor() {
    this.node = el("p");
  }

  /** Returns whether there is an error, or no data. */
  update(part, missing) {
    const text = part === undefined ? missing : part.error;
    setText(this.node, text ?? "");
    this.node.hidden = text === undefined;
    return text !== undefined;
  }
}

/** The page of a LUN that a service has open. */
export function lun(name) {
  const problem = new Problem();
  const facts = new Facts([
    ["Health", (l) => l.health],
    ["Service", (l) => ({ text: l.service, href: toService(l.service) })],
    ["Product", (l) => [l.vendor, l.product].filter(Boolean).join(" ")],
    ["World-wide ID", (l) => l.wwid],
    ["Serial number", (l) => l.serial],
    ["Size", (l) => format.bytes(l.size)],
    ["Policy", (l) => l.policy],
    ["Waiting for a path", (l) => format.count(l.waiting)],
    ["Held writes", (l) => format.count(l.held)],
    ["Lost writes", (l) => format.count(l.lost_writes)],
  ]);
  const paths = new Table("Paths", [
    { name: "Path", look: "long", cell: (p) => p.name },
    { name: "State", cell: (p) => pathState(p.state) },
    { name: "Reason", look: "long", cell: (p) => format.plain(p.why) },
    { name: "Name", cell: (p) => format.plain(p.legacy) },
    { name: "Transport", cell: (p) => p.transport },
    { name: "Access", cell: (p) => p.access },
    { name: "In flight", look: "number", cell: (p) => format.count(p.in_flight) },
    { name: "Reads", look: "number", cell: (p) => format.count(p.reads) },
    { name: "Writes", look: "number", cell: (p) => format.count(p.writes) },
    { name: "Failures", look: "number", cell: (p) => format.count(p.failures) },
    { name: "Retried", look: "number", cell: (p) => format.count(p.retried) },
    { name: "Lost", look: "number", cell: (p) => format.count(p.offline_events) },
    { name: "Median", look: "number", cell: (p) => format.nanoseconds(p.p50_us * 1000) },
    { name: "99 % within", look: "number", cell: (p) => format.nanoseconds(p.p99_us * 1000) },
  ]);
  const log = new Table("Log of the paths, the latest first", [
    { name: "Time", cell: (e) => format.moment(e.at_ms) },
    { name: "Path", look: "long", cell: (e) => e.path },
    { name: "Event", look: "long", cell: (e) => e.what },
    { name: "Moved requests", look: "number", cell: (e) => format.count(e.moved) },
    { name: "Longest stall", look: "number", cell: (e) => stall(e.stall_us) },
  ]);
  const charts = el("div", { class: "charts" });
  const all = el(
    "div",
    {},
    facts.node,
    section("Paths", paths.node, charts),
    section("Log", log.node),
  );
  return {
    title: name,
    service: (model) => holder(model, name)?.name,
    node: el("div", {}, problem.node, all),
    update(model) {
      const part = model.details?.lun;
      all.hidden = problem.update(part, "No service has this LUN open.");
      if (all.hidden) return;
      facts.update({ ...part, service: model.details.volume.name });
      paths.update(part.paths, (path) => path.name);
      log.update([...part.log].reverse(), (event) => event.id);
      keyed(charts, part.paths, (path) => path.name, (path) => pathChart(name, path.name, model));
    },
  };
}

function pathState(state) {
  const looks = { active: "ok", standby: "ok", failed: "failing" };
  return looks[state] === undefined ? state : { text: state, badge: true };
}

const stall = (us) => (us > 0 ? format.nanoseconds(us * 1000) : format.UNKNOWN);

function pathChart(lun, path, { history }) {
  const series = [
    { name: "Read", key: "readBytes" },
    { name: "Written", key: "writeBytes" },
  ];
  const chart = new Chart(`Bytes per second on ${path}`, series, format.byteRate, true);
  return { node: chart.node, update: () => chart.update(history.points(ofPath(lun, path))) };
}

const joined = (list) => (list ?? []).join(", ");

/** The page of a cell. */
export function cell(name) {
  const problem = new Problem();
  const facts = new Facts([
    ["Service", (c) => ({ text: c.name, href: toService(c.name) })],
    ["Addresses", (c) => joined(c.listen)],
    ["Announced", (c) => joined(c.announced)],
    ["Allowed clients", (c) => joined(c.allowed)],
    ["Anonymous writes", (c) => yes(c.anonymous_write)],
    ["Clients", (c) => `${format.count(c.stats.clients)}, ${format.count(c.stats.active_clients)} active`],
    ["Callback promises", (c) => format.count(c.stats.promises)],
    ["Calls", (c) => `${format.count(c.stats.calls)}, ${format.count(c.stats.errors)} with an error`],
    ["Callbacks broken", (c) => format.count(c.stats.callbacks_broken)],
  ]);
  const calls = [{ name: "Calls", key: "calls" }];
  const bytes = [
    { name: "Fetched", key: "fetched" },
    { name: "Stored", key: "stored" },
  ];
  const charts = [
    new Chart("Calls per second", calls, format.rate),
    new Chart("File data per second", bytes, format.byteRate, true),
  ];
  const clients = new Table("Clients", [
    { name: "Address", cell: (c) => `${c.address} port ${c.port}` },
    { name: "State", cell: (c) => c.state },
    { name: "Promises", look: "number", cell: (c) => format.count(c.promises) },
    { name: "Last heard", look: "number", cell: (c) => `${format.seconds(c.heard_seconds_ago)} ago` },
  ]);
  const volumes = new Table("Volumes", [
    { name: "Name", cell: (v) => v.name },
    { name: "Kind", cell: (v) => v.kind },
    { name: "ID", look: "number", cell: (v) => format.plain(v.id) },
    { name: "Used", look: "number", cell: (v) => format.bytes(v.used_bytes) },
    { name: "Quota", look: "number", cell: (v) => format.bytes(v.quota_bytes) },
    { name: "Inodes", look: "number", cell: (v) => format.count(v.used_inodes) },
  ]);
  const procedures = new Table("Calls by procedure", [
    { name: "Procedure", cell: (p) => p.name },
    { name: "Calls", look: "number", cell: (p) => format.count(p.calls) },
    { name: "Errors", look: "number", cell: (p) => format.count(p.errors) },
  ]);
  const all = el(
    "div",
    {},
    facts.node,
    section("Activity", arranged(charts), procedures.node),
    section("Clients", clients.node),
    section("Volumes", volumes.node),
  );
  return {
    title: name,
    service: () => name,
    node: el("div", {}, problem.node, all),
    update(model) {
      const part = model.details.cell;
      all.hidden = problem.update(part, "This service is not a cell, or does not answer.");
      if (all.hidden) return;
      facts.update(part);
      for (const chart of charts) chart.update(model.history.points(ofCell(name)));
      clients.update(part.clients ?? [], (client) => `${client.address} ${client.port}`);
      volumes.update(model.details.cell_volumes?.volumes ?? [], (volume) => volume.id);
      const rows = Object.entries(part.stats.procedures).filter(([, row]) => row.calls > 0);
      procedures.update(rows.map(([name, row]) => ({ name, ...row })), (row) => row.name);
    },
  };
}
