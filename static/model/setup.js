/**
 * How a conversation is to be answered: {model, system, sampling}. Knows which fields of a request that becomes.
 *
 *     model      the name of one, or null: the server's own
 *     system     what the model is told before all else; "" for nothing
 *     sampling   fields of `response.create`, as `temperature`; what is not there is the server's default
 */

// A small model that samples from its whole distribution loses the thread; this keeps it on it and still lively.
const BALANCED = Object.freeze({ temperature: 0.6, top_p: 0.95 });

/** What a new conversation has until somebody chooses. */
export const FIRST_SETUP = Object.freeze({ model: null, system: "", sampling: BALANCED });

export function requestOf({ model, system, sampling }) {
  return { ...(model && { model }), ...(system && { instructions: system }), ...sampling };
}
