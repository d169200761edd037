/**
 * Keeps the end of a growing text in view, and lets go the moment the reader scrolls up.
 * Calls `onchange(following)` when it lets go or takes hold again.
 */

const NEAR_END_PX = 40;

export class Follower {
  following = true;
  #scroller;
  #last = 0;
  #onchange;

  constructor(scroller, content, onchange) {
    this.#scroller = scroller;
    this.#onchange = onchange;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // A smooth scroll begins with steps of a few pixels, which growing text would undo before they add up.
    scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.#letGo(), { passive: true });
    const resized = new ResizeObserver(() => {
      if (this.following) this.#toEnd();
    });
    resized.observe(content);
    resized.observe(scroller);
  }

  /** Goes to the end and stays there. */
  jump() {
    this.#set(true);
    this.#toEnd();
  }

  #letGo() {
    if (this.#scroller.scrollTop > 0) this.#set(false);
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#last = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const left = scrollHeight - clientHeight - scrollTop;
    // Content that shrinks also moves the position up, but leaves it at the end: that is not the reader.
    if (scrollTop < this.#last && left > 2) this.#set(false);
    else if (scrollTop > this.#last && left <= NEAR_END_PX) this.#set(true);
    this.#last = scrollTop;
  }

  #set(following) {
    if (following === this.following) return;
    this.following = following;
    this.#onchange(following);
  }
}
