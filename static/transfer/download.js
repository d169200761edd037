/** Gives the reader a file. Knows names that every system takes, and nothing of what is in it. */

import { Slice } from "../model/slice.js";

const LENGTH = 80;
// Signs that some system gives a meaning, and those that turn the direction of what follows.
const UNSAFE = /[\\/:*?"<>|\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]+/gu;
const RESERVED = /^(con|prn|aux|nul|com\d|lpt\d)$/i;

/** A file's name from a title; `otherwise` where nothing of that can stay. */
export function fileName(title, extension, otherwise) {
  const safe = title.normalize("NFC").replace(UNSAFE, " ").replace(/\s+/gu, " ");
  const name = Array.from(safe).slice(0, LENGTH).join("").replace(/^[ .]+|[ .]+$/g, "") || otherwise;
  return `${RESERVED.test(name) ? `_${name}` : name}.${extension}`;
}

/** @param {Iterable<string>} pieces of the file's text, made in slices */
export async function download(name, type, pieces) {
  const made = [];
  const slice = new Slice();
  for (const piece of pieces) {
    made.push(piece);
    if (slice.isOver) await slice.next();
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(made, { type }));
  link.download = name;
  link.click();
  // The browser has taken hold of it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
