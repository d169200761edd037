/**
 * What can be said of an answer in a few words: where it stands while it runs, and what it was when it has ended.
 * Knows messages and the server's statistics. Pure, but for the words and the reader's way to write numbers.
 */

import { figure, percent, seconds, tokenCount, tokenRate } from "./format.js";
import { Status } from "../tickwire.js";
import { text as say } from "../texts.js";

const CUT_SHORT = [Status.LENGTH, Status.STOPPED, Status.INTERRUPTED, Status.FAILED];

/**
 * How full the context is with this message: {used, limit}, in tokens; null: not known.
 * @param stats what the server says of a message that runs, else null
 * @param {number | null} limit what the context holds; the server's own word on a running message goes before it
 */
export function contextOf(message, stats, limit) {
  if (stats?.context_left != null) {
    const used = stats.prompt_tokens + stats.output_tokens;
    return { used, limit: used + stats.context_left };
  }
  const { promptTokens, tokens } = message.stats ?? {};
  return promptTokens == null || tokens == null || !limit ? null : { used: promptTokens + tokens, limit };
}

function isFull(context) {
  return context !== null && context.used >= context.limit;
}

/** How an answer ended, in words; empty for one that simply ended. */
export function endingOf(message, context = null) {
  if (message.status === Status.LENGTH && isFull(context)) return say("answer.full");
  return CUT_SHORT.includes(message.status) ? say(`answer.${message.status}`) : "";
}

/** Whether an answer ended before its end, and may be gone on with from its last word. */
export function canGoOn(message, context) {
  return message.text !== "" && CUT_SHORT.includes(message.status) && !isFull(context);
}

/** What an answer waits for that is not being written. */
export function waitOf({ status }, stats) {
  if (status === Status.QUEUED) return say("answer.waitingForConnection");
  if (stats?.status === "queued") return say("answer.queued", stats.queue_position + 1);
  if (stats?.status === "prefilling") {
    return say("answer.reading", stats.computed_tokens ? percent(stats.computed_tokens / stats.prompt_tokens) : "");
  }
  return say("answer.waitingForToken");
}

/** The figures of an answer that has text and runs. */
export function runningFigures(message, stats) {
  const isWritten = message.status === Status.STREAMING && (stats === null || stats.status === "generating");
  if (!isWritten) return [waitOf(message, stats)];
  if (stats === null) return [];
  // Of one that goes on, the server counts what it has added.
  const before = message.continued ? (message.stats?.tokens ?? 0) : 0;
  const rate = stats.tokens_per_s === null ? [] : [tokenRate(stats.tokens_per_s)];
  return [tokenCount(before + stats.output_tokens), ...rate];
}

/** The figures of an answer that has ended. */
export function endedFigures({ stats, continued }) {
  const { tokens, tokensPerSecond, firstTokenMs, promptTokens, cachedTokens } = stats ?? {};
  const figures = [];
  if (continued) figures.push(say("answer.continued"));
  if (tokens != null) figures.push(tokenCount(tokens));
  if (tokensPerSecond != null) figures.push(tokenRate(tokensPerSecond));
  if (firstTokenMs != null) figures.push(say("answer.firstToken", seconds(firstTokenMs)));
  if (promptTokens != null) {
    figures.push(say("answer.prompt", promptTokens, figure(promptTokens), cachedTokens ? figure(cachedTokens) : ""));
  }
  return figures;
}

/** How full the context is, in a sentence. */
export function contextSentence({ used, limit }) {
  return say("context.sentence", figure(used), figure(limit), percent(used / limit), figure(Math.max(0, limit - used)));
}
