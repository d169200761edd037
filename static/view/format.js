/** Figures and dates as people read them, in the reader's own language. */

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

/** Milliseconds as seconds, with as many digits as mean something. */
export function seconds(ms) {
  return text("answer.seconds", (ms < 10_000 ? hundredths : tenths).format(ms / 1000));
}

const month = new Intl.DateTimeFormat(undefined, { month: "long" });
const monthOfYear = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });

const hundredth = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 0 });

/** A part of one, in percent. */
export function percent(part) {
  return hundredth.format(part);
}

/** The heading under which a conversation of that day is listed. */
export function dayName(time, now = Date.now()) {
  const today = new Date(now);
  const daysAgo = (days) => new Date(today.getFullYear(), today.getMonth(), today.getDate() - days).getTime();
  if (time >= daysAgo(0)) return text("list.today");
  if (time >= daysAgo(1)) return text("list.yesterday");
  if (time >= daysAgo(6)) return text("list.lastDays");
  return (new Date(time).getFullYear() === today.getFullYear() ? month : monthOfYear).format(time);
}
