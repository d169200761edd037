/** Figures of the engine as sentences, in the reader's language. */

import { figure } from "../view/format.js";
import { text } from "../texts.js";

const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function milliseconds(ms) {
  return text("engine.ms", ms < 100 ? tenths.format(ms) : figure(Math.round(ms)));
}

/** What happened in a tick. */
export function tickWords({ number, ms, rows, decode_tokens: decoded, prefill_tokens: read, stages }) {
  const counts = [[rows, "rows"], [decoded, "decoded"], ...(read ? [[read, "read"]] : [])];
  const said = counts.map(([count, what]) => text(`engine.tick.${what}`, count, figure(count)));
  const model = text("engine.tick.model", milliseconds(stages.execute / 1000));
  return text("engine.tick.all", figure(number), milliseconds(ms), said, model);
}

/** From when to when somebody ran. */
export function stayWords({ from, to, end }, sign, isMine) {
  const entered = from === -Infinity ? null : figure(from);
  const left = to === null ? null : figure(to);
  return text("engine.stay", sign?.letters ?? "", isMine, entered, left, end === "preempted");
}
