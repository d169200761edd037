/**
 * What screen readers are told without moving: answers, sentence by sentence, and what has been done. One hidden live
 * region takes it in lines; a region that changed with every token could not be listened to.
 */

import { Speech } from "./speech.js";
import { text } from "../texts.js";

const LINES = 20;

/**
 * Says these words when the screen reader has said what it is at. Behind an open dialog nobody would hear them: it says
 * them.
 */
export function announce(words) {
  if (!words) return;
  const region = regionIn(document.querySelector("dialog:modal") ?? document.body);
  const line = document.createElement("p");
  line.textContent = words;
  region.append(line);
  while (region.childElementCount > LINES) region.firstChild.remove();
}

/** Of a log only what is added is read, where a `status` would be read from its beginning. */
function regionIn(parent) {
  const known = parent.querySelector(":scope > .announcer");
  if (known) return known;
  const region = document.createElement("div");
  region.className = "announcer visually-hidden";
  region.setAttribute("role", "log");
  region.setAttribute("aria-label", text("page.beingRead"));
  parent.append(region);
  return region;
}

/** Reads answers aloud as they grow, each from where it was last read. */
export class Announcer {
  /** Message -> the Speech of it. */
  #speeches = new WeakMap();

  /** Takes what there is of these messages as read: they have just come on screen. */
  skip(messages) {
    for (const message of messages) for (const _ of this.#speech(message).of(message.text));
  }

  /** Says the sentences of this answer that are complete and not said yet. */
  grow(message) {
    for (const sentence of this.#speech(message).of(message.text)) announce(sentence);
  }

  /** Says what is left of an answer, and how it ended. */
  finish(message, ending) {
    for (const sentence of this.#speech(message).of(message.text, { complete: true })) announce(sentence);
    announce(ending || text("speech.complete"));
  }

  #speech(message) {
    if (!this.#speeches.has(message)) this.#speeches.set(message, new Speech());
    return this.#speeches.get(message);
  }
}
