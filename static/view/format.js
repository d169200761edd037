/** Figures and dates as people read them, in the reader's own language. */

import { text } from "../texts.js";

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

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

/** The heading under which a conversation of that day is listed. */
export function dayName(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (time >= midnight) return text("list.today");
  if (time >= midnight - 24 * 3600 * 1000) return text("list.yesterday");
  return text("list.before");
}
