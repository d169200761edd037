/** Figures, dates and names as people read them, in the reader's own language. */

import { text } from "../texts.js";

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

const plain = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });

/** Any number. */
export function figure(number) {
  return plain.format(number);
}

export function tokenCount(count) {
  return text("answer.tokens", count, whole.format(count));
}

export function tokenRate(perSecond) {
  return text("answer.rate", (perSecond < 100 ? tenths : whole).format(perSecond));
}

const BYTES = ["byte", "kilobyte", "megabyte", "gigabyte"];

/** A size, in the unit in which it is a number of few digits. */
export function bytes(count) {
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), BYTES.length - 1);
  const style = { style: "unit", unit: BYTES[power], maximumFractionDigits: 1 };
  return new Intl.NumberFormat(undefined, style).format(count / 1000 ** power);
}

/** Milliseconds as seconds, with as many digits as mean something. */
export function seconds(ms) {
  return text("answer.seconds", (ms < 10_000 ? hundredths : tenths).format(ms / 1000));
}

const hundredth = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 0 });

/** A part of one, in percent. */
export function percent(part) {
  return hundredth.format(part);
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const dayAndClock = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short" });

/** Milliseconds since 1970 as the time of that day, */
export function timeOfDay(time) {
  return clock.format(time);
}

/** and with the day. */
export function dayAndTime(time) {
  return dayAndClock.format(time);
}

const month = new Intl.DateTimeFormat(undefined, { month: "long" });
const monthOfYear = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });

/** The heading under which a conversation of that day is listed. */
export function dayName(time, now = Date.now()) {
  const today = new Date(now);
  const daysAgo = (days) => new Date(today.getFullYear(), today.getMonth(), today.getDate() - days).getTime();
  if (time >= daysAgo(0)) return text("list.today");
  if (time >= daysAgo(1)) return text("list.yesterday");
  if (time >= daysAgo(6)) return text("list.lastDays");
  return (new Date(time).getFullYear() === today.getFullYear() ? month : monthOfYear).format(time);
}

/** What a setup is called that is this preset; undefined: it is none. */
export function presetName(preset) {
  return preset ? (preset.name ?? text(`preset.${preset.id}`)) : text("preset.changed");
}
