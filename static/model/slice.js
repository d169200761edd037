/**
 * Long work in slices, between which the page does what it has to: `if (slice.isOver) await slice.next()`.
 * Work that is not waited for by a frame, and goes on where no frames are drawn; render/slices.js is for what is.
 */

const SLICE_MS = 8;

export class Slice {
  #end = performance.now() + SLICE_MS;

  get isOver() {
    return performance.now() > this.#end;
  }

  /** Resolves when the page has had its turn. A timer would wait longer each time. */
  async next() {
    await new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        resolve();
      };
      port2.postMessage(null);
    });
    this.#end = performance.now() + SLICE_MS;
  }
}
