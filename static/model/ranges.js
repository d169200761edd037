/**
 * Numbers that people write, and the range that the server has for them. Pure: knows the JSON schemas of
 * `GET /v1/models`.
 */

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/**
 * @returns {{low: number, high: number, above: boolean, whole: boolean}} `above`: low itself is not allowed. Whole
 *   numbers end where they can still be told apart.
 */
export function rangeOf({ type, minimum, exclusiveMinimum, maximum, exclusiveMaximum }) {
  const whole = type === "integer";
  const low = minimum ?? exclusiveMinimum;
  // Of whole numbers alone is the upper end left out.
  const high = maximum ?? exclusiveMaximum - 1;
  return {
    low: Math.max(low, Number.MIN_SAFE_INTEGER),
    high: Math.min(high, Number.MAX_SAFE_INTEGER),
    above: minimum === undefined,
    whole,
  };
}

/** The number that somebody has written, with a point or a comma; NaN: it is none. */
export function numberFrom(words) {
  const plain = words.trim().replace("−", "-").replace(",", ".");
  return NUMBER.test(plain) ? Number(plain) : NaN;
}

export function isIn(number, { low, high, above, whole }) {
  return number >= low && number <= high && !(above && number === low) && !(whole && !Number.isInteger(number));
}
