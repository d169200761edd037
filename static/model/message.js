/**
 * What the record of an answer says. Knows fields, not where they are kept or who shows them.
 *
 * One answer may be read by several tabs at once, and asked for more than once: when its page went away before the
 * server had named it, or when the server has lost it. `asked` counts that, and of two records of one answer this
 * tells which is further.
 */

import { Status } from "../tickwire.js";

// Longer than a tab that writes an answer waits until it keeps what has grown.
const JUST_NOW_MS = 1000;

export const RUNNING = Object.freeze([Status.QUEUED, Status.SENT, Status.STREAMING]);

/** Whether an answer may still grow. */
export function isRunning(message) {
  return RUNNING.includes(message.status);
}

/**
 * Whether an answer has grown, or was asked for, a moment ago. Else this tab may have slept, and another one may be
 * further with it.
 */
export function hasJustGrown({ grown, created }) {
  return Date.now() - (grown ?? created) < JUST_NOW_MS;
}

/** Whether an answer has a question. Chats that come from elsewhere may begin without one. */
export function isAnswering(message) {
  return message.parent !== null;
}

/** Whether one record of an answer is further than another: asked for later, ended, named by the server, grown. */
export function isFurther(one, other) {
  if (timesAsked(one) !== timesAsked(other)) return timesAsked(one) > timesAsked(other);
  if (isRunning(one) !== isRunning(other)) return !isRunning(one);
  if (Boolean(one.responseId) !== Boolean(other.responseId)) return Boolean(one.responseId);
  return (one.sequence ?? -1) > (other.sequence ?? -1);
}

/** An answer's record from the moment when its rest is asked for in a new response. */
export function askedAnew(message) {
  return {
    ...message,
    asked: timesAsked(message) + 1,
    continued: (message.continued ?? 0) + (message.text ? 1 : 0),
    responseId: null,
    sequence: -1,
    status: Status.QUEUED,
    error: null,
    grown: Date.now(),
  };
}

/** Answers of older pages do not say: they were asked for once. */
export function timesAsked({ asked = 1 }) {
  return asked;
}
