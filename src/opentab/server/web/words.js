// Times, counts and sizes in words.

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const counted = new Intl.NumberFormat();
const sparse = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

let zone = "UTC";

/** The home's time zone, once it is known. */
export function useZone(name) {
  zone = name;
}

/** How long ago, such as `3 seconds ago`. */
export function ago(ms) {
  return ms < 1.5 * SECOND ? "just now" : `${long(ms)} ago`;
}

/** How long, such as `3 seconds`. */
export function long(ms) {
  for (const [size, name] of [[DAY, "day"], [HOUR, "hour"], [MINUTE, "minute"], [SECOND, "second"]]) {
    if (ms >= size || size === SECOND) {
      const number = Math.floor(ms / size);
      return `${count(number)} ${name}${number === 1 ? "" : "s"}`;
    }
  }
}

/** How long, in short: `140 ms`, `2.3 s`. */
export function span(ms) {
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${sparse.format(ms / SECOND)} s`;
  if (ms < HOUR) return `${sparse.format(ms / MINUTE)} min`;
  return ms < 2 * DAY ? `${sparse.format(ms / HOUR)} h` : `${count(Math.round(ms / DAY))} d`;
}

export function count(number) {
  return counted.format(number);
}

export function short(number) {
  return compact.format(number);
}

export function bytes(number) {
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (number >= size) return `${sparse.format(number / size)} ${name}`;
  }
  return `${count(number)} B`;
}

/** `2026-01` as `January 2026`. */
export function month(period, style = "long") {
  const at = new Date(`${period}-15T12:00:00Z`);
  return new Intl.DateTimeFormat(undefined, { month: style, year: "numeric", timeZone: "UTC" }).format(at);
}

/** A day and its time, in the home's zone. */
export function instant(text) {
  if (!text) return "never";
  return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short", timeZone: zone }).format(new Date(text));
}

/** The same where there is little room. */
export function shortInstant(text) {
  return new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "numeric", minute: "2-digit", timeZone: zone }).format(new Date(text));
}

/** The time of day at the reader's own place. */
export function clock(ms) {
  return new Intl.DateTimeFormat(undefined, { timeStyle: "medium" }).format(new Date(ms));
}

/** The day of a month that an instant falls on, in the home's zone; 0 if it falls on none of them. */
export function dayOf(text, period) {
  if (!text) return 0;
  const parts = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit", timeZone: zone }).formatToParts(new Date(text));
  const [year, number, day] = ["year", "month", "day"].map((type) => parts.find((part) => part.type === type).value);
  return `${year}-${number}` === period ? Number(day) : 0;
}

/** How many days a month has. */
export function daysOf(period) {
  const [year, number] = period.split("-").map(Number);
  return new Date(Date.UTC(year, number, 0)).getUTCDate();
}

/** The same beginning with a capital letter. */
export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A fact as a sentence. */
export function sentence(fact) {
  return `${capital(fact)}.`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A share of 1; what is there but tiny is not nothing. */
export function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${Math.round(100 * share)} %`;
}
