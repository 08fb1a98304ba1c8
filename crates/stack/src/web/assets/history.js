// Rates from totals, for as long as the page is open.
//
// A rate compares two totals of the same run of a service. After a restart, or if a total has
// decreased, there is none for that interval: the curve has a gap.

/** Points that are kept for each key: ten minutes. */
const LENGTH = 300;

export class History {
  #last = new Map();
  #points = new Map();

  /**
   * Adds totals at a time in milliseconds. `run` identifies the run of the service. `derive`
   * computes values from the differences and the seconds since the last totals.
   */
  totals(key, time, run, totals, derive) {
    const last = this.#last.get(key);
    if (last !== undefined && time <= last.time) return;
    this.#last.set(key, { time, run, totals });
    let values = null;
    if (last !== undefined && last.run === run) {
      const names = Object.keys(totals);
      const differences = Object.fromEntries(
        names.map((name) => [name, totals[name] - last.totals[name]]),
      );
      if (names.every((name) => differences[name] >= 0)) {
        values = derive(differences, (time - last.time) / 1000);
      }
    }
    this.values(key, time, values);
  }

  /** Adds values at a time; null for a gap. */
  values(key, time, values) {
    const points = this.#points.get(key) ?? [];
    if (points.length > 0 && time <= points[points.length - 1].time) return;
    points.push({ time, values });
    if (points.length > LENGTH) points.shift();
    this.#points.set(key, points);
  }

  /** Returns the points of a key, the oldest first. */
  points(key) {
    return this.#points.get(key) ?? [];
  }

  /** Returns the last values of a key; null if there are none. */
  last(key) {
    return this.points(key).at(-1)?.values ?? null;
  }
}

/** Sums a field over all kinds of requests. */
const sum = (stats, field) =>
  Object.values(stats).reduce((all, kind) => all + (kind?.[field] ?? 0), 0);

/** Totals of a service's requests, for a history. */
export function ioTotals(stats) {
  return {
    readBytes: stats.read.bytes,
    writeBytes: stats.write.bytes,
    reads: stats.read.requests,
    writes: stats.write.requests,
    requests: sum(stats, "requests"),
    errors: sum(stats, "errors"),
    time: sum(stats, "total_ns"),
  };
}

/** Rates of a service's requests, from the differences of totals. */
export function ioRates(d, seconds) {
  return {
    readBytes: d.readBytes / seconds,
    writeBytes: d.writeBytes / seconds,
    reads: d.reads / seconds,
    writes: d.writes / seconds,
    requests: d.requests / seconds,
    errors: d.errors / seconds,
    latency: d.requests > 0 ? d.time / d.requests : null,
  };
}
