/**
 * How a conversation is to be answered: {model, system, sampling}. Knows which fields of a request that becomes, and
 * what has a name: a preset is {id, name, setup}, and its setup may say less than all.
 *
 *     model      the name of one, or null: the server's own
 *     system     what the model is told before all else; "" for nothing
 *     sampling   fields of `response.create`, as `temperature`; what is not there is the server's default
 */

// A small model that samples from its whole distribution loses the thread; this keeps it on it and still lively.
const BALANCED = Object.freeze({ temperature: 0.6, top_p: 0.95 });

/** What a new conversation has until somebody chooses. */
export const FIRST_SETUP = Object.freeze({ model: null, system: "", sampling: BALANCED });

/** Those that come with the page, named in its texts. They say how words are chosen, and nothing of what is said. */
export const BUILT_IN = Object.freeze([
  { id: "balanced", setup: { sampling: BALANCED } },
  { id: "precise", setup: { sampling: { temperature: 0 } } },
  // What is far less likely than the likeliest is left out: lively, not lost.
  { id: "lively", setup: { sampling: { temperature: 1, min_p: 0.1 } } },
  { id: "server", setup: { sampling: {} } },
]);

export function requestOf({ model, system, sampling }) {
  return { ...(model && { model }), ...(system && { instructions: system }), ...sampling };
}

/** A setup with all that a preset says of it. */
export function withPreset(setup, preset) {
  return { ...setup, ...preset.setup };
}

/** The preset that a setup is, one's own before those that came with the page; undefined: none. */
export function presetIn(setup, own) {
  return [...own, ...BUILT_IN].find((preset) => sameSetup(withPreset(setup, preset), setup));
}

export function sameSetup(one, other) {
  return written(one) === written(other);
}

function written({ model, system, sampling }) {
  return JSON.stringify([model, system, Object.entries(sampling).sort(([a], [b]) => (a < b ? -1 : 1))]);
}
