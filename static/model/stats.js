/**
 * Figures of an answer for its reader: {tokens, promptTokens, cachedTokens, firstTokenMs, tokensPerSecond}. The server
 * counts tokens, this side measures time; null is what nobody knows.
 *
 * An answer may be read by several pages, and computed in several responses, each of which goes on where the one
 * before was lost. The figures are of the whole answer: the prompt and the first token are those of its first
 * response; the rate is that of its last one.
 */

export const NOTHING = Object.freeze({
  tokens: null,
  promptTokens: null,
  cachedTokens: null,
  firstTokenMs: null,
  tokensPerSecond: null,
});

/** When the first text of a response has come. `asked`: this page asked for it, and saw it from its beginning. */
export function atFirstText(message, { times }, asked) {
  const wasSeen = asked && !message.continued && times.first !== null;
  return { ...NOTHING, firstTokenMs: wasSeen ? times.first - times.sent : null, ...message.stats };
}

/** With what the server says of the response while it runs; null: it did not say. */
export function withServers(message, server) {
  const { stats } = message;
  if (!server) return stats;
  // Of one that goes on, the server takes the text so far for a part of the prompt.
  if (message.continued) return { ...stats, tokens: stats.promptTokens && server.prompt_tokens - stats.promptTokens };
  return {
    ...stats,
    promptTokens: server.prompt_tokens,
    cachedTokens: server.cached_tokens,
    firstTokenMs: stats.firstTokenMs ?? server.first_token_ms ?? null,
  };
}

/**
 * When a response had its first token, on this page's clock, by what the server says of it while it is written; null:
 * it did not say.
 */
export function firstTokenAt(server) {
  if (server?.status !== "generating" || !server.tokens_per_s) return null;
  return performance.now() - (1000 * (server.output_tokens - 1)) / server.tokens_per_s;
}

/** When a response has ended, whose first token came at this time; null: nobody knows. */
export function atEnd(message, answer, asked, firstToken) {
  const { usage, times } = answer;
  const stats = atFirstText(message, answer, asked);
  if (!usage) return stats;
  const { input_tokens: input, output_tokens: output, input_tokens_details: details } = usage;
  if (!message.continued) {
    stats.promptTokens = input;
    stats.cachedTokens = details?.cached_tokens ?? null;
  }
  stats.tokens = stats.promptTokens === null ? null : input + output - stats.promptTokens;
  const span = firstToken === null ? 0 : times.last - firstToken;
  // The first token ends the wait; the rate is that of those after it.
  stats.tokensPerSecond = output > 1 && span > 0 ? (1000 * (output - 1)) / span : null;
  return stats;
}
