/**
 * Keeps the end of a growing text in view, and lets go the moment the reader scrolls up.
 * Calls `onfar(isFar)` when the reader has come so far away that a way back to the end is of use, and when he is back.
 */

const NEAR_END_PX = 40;
/** As much as lies below the last words of an answer: a button over it would hide what it leads to. */
const FAR_PX = 120;

export class Follower {
  #following = true;
  #isFar = false;
  #scroller;
  /** What stays where it is until the reader moves: {element, top}. */
  #held = null;
  #last = 0;
  #onfar;

  constructor(scroller, content, onfar) {
    this.#scroller = scroller;
    this.#onfar = onfar;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // A smooth scroll begins with steps of a few pixels, which growing text would undo before they add up.
    scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.#letGo(), { passive: true });
    const resized = new ResizeObserver(() => {
      if (this.#held) this.#keep();
      else if (this.#following) this.#toEnd();
      this.#tell();
    });
    resized.observe(content);
    resized.observe(scroller);
  }

  /** Goes to the end and stays there. */
  jump() {
    this.#held = null;
    this.#following = true;
    this.#toEnd();
    this.#tell();
  }

  /**
   * Changes the content without moving what the reader looks at, however long it takes until all of it is there.
   * @param {Element} element what he looks at
   * @param {() => Element} act makes the change, and returns what stands in the element's place then
   */
  hold(element, act) {
    const { top } = element.getBoundingClientRect();
    this.#held = { element: act(), top };
    this.#keep();
  }

  #keep() {
    const { element, top } = this.#held;
    this.#scroller.scrollTop += element.getBoundingClientRect().top - top;
    this.#last = this.#scroller.scrollTop;
    this.#following = this.#left <= NEAR_END_PX;
  }

  get #left() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    return scrollHeight - clientHeight - scrollTop;
  }

  #letGo() {
    if (this.#scroller.scrollTop > 0) this.#following = false;
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#last = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop } = this.#scroller;
    if (scrollTop !== this.#last) this.#held = null;
    // Content that shrinks also moves the position up, but leaves it at the end: that is not the reader.
    if (scrollTop < this.#last && this.#left > 2) this.#following = false;
    else if (scrollTop > this.#last && this.#left <= NEAR_END_PX) this.#following = true;
    this.#last = scrollTop;
    this.#tell();
  }

  #tell() {
    const isFar = !this.#following && this.#left > FAR_PX;
    if (isFar === this.#isFar) return;
    this.#isFar = isFar;
    this.#onfar(isFar);
  }
}
