// Figures as text.

/** Text in place of an unknown figure. */
export const UNKNOWN = "-";

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Rounds to about three digits. */
function short(value) {
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Formats a number of bytes. */
export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  let unit = 0;
  while (value >= 1024 && unit + 1 < BYTE_UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : short(value)} ${BYTE_UNITS[unit]}`;
}

/** Formats bytes per second. */
export function byteRate(value) {
  return isNumber(value) ? `${bytes(value)}/s` : UNKNOWN;
}

/** Formats a count. */
export function count(value) {
  return isNumber(value) ? value.toLocaleString("en-US") : UNKNOWN;
}

/** Formats events per second. */
export function rate(value) {
  if (!isNumber(value)) return UNKNOWN;
  return value >= 1000 ? `${count(Math.round(value))}/s` : `${short(value)}/s`;
}

/** Formats a share from 0 to 1. */
export function percent(value) {
  return isNumber(value) ? `${short(value * 100)} %` : UNKNOWN;
}

/** Formats a number of nanoseconds. */
export function nanoseconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (value >= size) return `${short(value / size)} ${unit}`;
  }
  return `${Math.round(value)} ns`;
}

/** Formats a number of seconds with one or two units. */
export function seconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  const whole = Math.floor(value);
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(whole / unit));
  if (minutes === 0) return `${whole} s`;
  if (hours === 0) return `${minutes} min`;
  if (days === 0) return `${hours} h ${minutes % 60} min`;
  return `${days} d ${hours % 24} h`;
}

/** Formats a time, in milliseconds since 1970. */
export function moment(value) {
  return isNumber(value) ? new Date(value).toLocaleString() : UNKNOWN;
}

/** Formats the time of a day, from milliseconds since 1970. */
export function clock(value) {
  return isNumber(value) ? new Date(value).toLocaleTimeString() : UNKNOWN;
}

/** Returns a text as it is, or a sign that it is unknown. */
export function plain(value) {
  return value === null || value === undefined || value === "" ? UNKNOWN : String(value);
}

/** Names the kind of a service. */
export function kind(volume) {
  if (typeof volume.cell === "string") return "cell";
  return typeof volume.fileset === "string" ? "mount" : "volume";
}

/** Names the state of a service, as `evfs status` does. */
export function state(volume) {
  const health = volume.error === undefined ? volume.health?.state : undefined;
  return health ?? volume.state ?? "ok";
}

/** Computes the used share of a file system; undefined for other services. */
export function usedShare(space) {
  if (!space || !(space.size_bytes > 0)) return undefined;
  return (space.size_bytes - space.available_bytes) / space.size_bytes;
}
