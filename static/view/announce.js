/**
 * Speaks answers to screen readers, sentence by sentence, through one hidden live region. A region that changed
 * with every token could not be listened to.
 */

const SENTENCE = /^[\s\S]*?(?:[.!?…。！？][)"'”’]*(?=\s)|\n{2,}|[。！？])/;
const MARKS = /```[\s\S]*?(?:```|$)|[*_`#>|]+|^\s*[-+]\s/gm;

function spoken(text) {
  return text.replace(MARKS, (mark) => (mark.startsWith("```") ? " Code. " : "")).trim();
}

export class Announcer {
  #region;
  #messageId = null;
  #read = 0;

  constructor(region) {
    this.#region = region;
  }

  /** Says the sentences of this answer that are complete and not said yet. */
  grow(message) {
    this.#follow(message);
    const unread = message.text.slice(this.#read);
    // Inside an open code block no line is a sentence.
    if ((message.text.match(/^```/gm) ?? []).length % 2 === 1) return;
    const sentence = unread.match(SENTENCE)?.[0];
    if (!sentence) return;
    this.#read += sentence.length;
    this.say(spoken(sentence));
    this.grow(message);
  }

  /** Says what is left of an answer, and how it ended. */
  finish(message, ending) {
    this.#follow(message);
    this.say(spoken(message.text.slice(this.#read)));
    this.#read = message.text.length;
    this.say(ending);
  }

  say(text) {
    if (!text) return;
    const line = document.createElement("p");
    line.textContent = text;
    this.#region.append(line);
    while (this.#region.childElementCount > 20) this.#region.firstChild.remove();
  }

  #follow(message) {
    if (this.#messageId === message.id) return;
    this.#messageId = message.id;
    this.#read = 0;
    this.#region.replaceChildren();
  }
}
