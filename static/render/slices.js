/**
 * Work on the page in slices, so that no key stroke and no frame waits for it.
 *
 * Knows how much of a frame may be used, and what is waiting. It does not know what the work does: a piece of work is
 * an iterator, and each of its steps must be short. The newest goes first: that is what the reader has asked for last.
 */

const SLICE_MS = 8;

const waiting = [];
let frame = 0;
/** What is left of this frame's slice. */
let left = SLICE_MS;

/** Does this work from the next frame on. */
export function soon(work) {
  waiting.push(work);
  frame ||= requestAnimationFrame(nextFrame);
}

/** Does this work at once as far as the frame's slice reaches, and what is left of it as `soon` does. */
export function now(work) {
  const known = waiting.indexOf(work);
  if (known >= 0) waiting.splice(known, 1);
  soon(work);
  run();
}

function nextFrame() {
  frame = 0;
  left = SLICE_MS;
  run();
  if (waiting.length) frame ||= requestAnimationFrame(nextFrame);
}

function run() {
  const began = performance.now();
  while (waiting.length && performance.now() - began < left) {
    const work = waiting.at(-1);
    let done = true;
    try {
      done = work.next().done;
    } finally {
      // Work that failed is over, too.
      if (done) waiting.splice(waiting.indexOf(work), 1);
    }
  }
  left -= performance.now() - began;
}
