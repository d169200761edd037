/** Figures and dates as people read them, in the reader's own language. */

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export function tokenCount(count) {
  return `${whole.format(count)} ${count === 1 ? "token" : "tokens"}`;
}

export function tokenRate(perSecond) {
  return `${(perSecond < 100 ? tenths : whole).format(perSecond)} tokens/s`;
}

/** Milliseconds as seconds, with as many digits as mean something. */
export function seconds(ms) {
  return `${(ms < 10_000 ? hundredths : tenths).format(ms / 1000)} s`;
}

/** The heading under which a conversation of that day is listed. */
export function dayName(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - 24 * 3600 * 1000) return "Yesterday";
  return "Earlier";
}
