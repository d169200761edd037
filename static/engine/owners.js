/**
 * By what one recognises a sequence wherever it is drawn: a colour and letters, for as long as it is on the page.
 * Colours are not enough: many of them look alike, and not everybody sees them.
 */

// Neighbours in the order of entry get hues that lie far apart: the golden angle.
const TURN = 137.508;
const FIRST_HUE = 172;

export class Owners {
  /** Sequence -> the number of its sign. */
  #signs = new Map();

  /** Those that are on the page; the signs of all others may be given to newcomers. */
  keep(ids) {
    for (const id of this.#signs.keys()) if (!ids.has(id)) this.#signs.delete(id);
    const taken = new Set(this.#signs.values());
    let next = 0;
    for (const id of ids) {
      if (this.#signs.has(id)) continue;
      while (taken.has(next)) next += 1;
      taken.add(next);
      this.#signs.set(id, next);
    }
  }

  /** {letters, hue}; hue in degrees, as oklch counts them. Null: it is not on the page. */
  signOf(id) {
    const number = this.#signs.get(id);
    return number === undefined ? null : { letters: lettersOf(number), hue: (FIRST_HUE + number * TURN) % 360 };
  }
}

/** A to Z, AA, AB, ... */
function lettersOf(number) {
  const last = String.fromCharCode(65 + (number % 26));
  return number < 26 ? last : lettersOf(Math.floor(number / 26) - 1) + last;
}
