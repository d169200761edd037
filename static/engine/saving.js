/**
 * What became of the memory that was held, here and, beside it, under the classical policies: the server simulates
 * those on the same requests. Knows the sums that it tells, and how little is too little to say anything.
 */

import { h, setText } from "../view/dom.js";
import { percent } from "../view/format.js";
import { text } from "../texts.js";

const ENOUGH_TICKS = 20;

export class Savings {
  element = h("div", { class: "savings" });
  #verdict = h("p", { class: "verdict" });
  #arms = new Map();

  constructor() {
    this.element.append(this.#verdict);
  }

  update({ config, memory_over_ticks: sums, shadow }) {
    const held = sums.used + sums.reserved + sums.internal;
    const own = this.#arm(config.admission, true);
    const wasted = sums.ticks < ENOUGH_TICKS ? null : own.show([sums.used, sums.reserved, sums.internal], held);
    let baseline = null;
    for (const [policy, { used, allocated, ticks }] of Object.entries(shadow)) {
      if (policy === config.admission) continue;
      const arm = this.#arm(policy, false);
      const share = ticks < ENOUGH_TICKS ? null : arm.show([used, 0, allocated - used], allocated);
      if (policy === "static") baseline = share;
    }
    const isKnown = wasted !== null && baseline !== null;
    const verdict = isKnown ? ["verdict", percent(baseline), percent(wasted)] : ["tooLittle"];
    setText(this.#verdict, say(...verdict));
  }

  #arm(policy, isOwn) {
    if (!this.#arms.has(policy)) {
      const arm = new Arm(policy, isOwn);
      this.#arms.set(policy, arm);
      this.element.append(arm.element);
    }
    return this.#arms.get(policy);
  }
}

/** A policy: its name, a bar, and in words what the bar shows. */
class Arm {
  element;
  #parts = ["used", "reserved", "lost"].map((kind) => h("i", { class: kind }));
  #words = h("p", { class: "words" }, say("notEnough"));
  #isOwn;

  constructor(policy, isOwn) {
    this.#isOwn = isOwn;
    const here = isOwn ? h("b", {}, say("here")) : null;
    const name = h("h4", {}, text(`engine.policies.${policy}.name`), here);
    const bar = h("div", { class: "gauge", "aria-hidden": "true" }, ...this.#parts);
    const how = h("p", { class: "how" }, text(`engine.policies.${policy}.how`));
    this.element = h("div", { class: "arm" }, name, bar, this.#words, how);
  }

  /** @returns {number | null} the share that held nothing; null where nothing was held */
  show(slots, held) {
    if (!held) return null;
    const shares = slots.map((count) => count / held);
    this.#parts.forEach((part, i) => {
      part.style.flexGrow = String(shares[i]);
    });
    const [used, ...rest] = shares.map(percent);
    const idle = 1 - shares[0];
    setText(this.#words, this.#isOwn ? say("own", used, ...rest) : say("other", used, percent(idle)));
    return idle;
  }
}

function say(name, ...values) {
  return text(`engine.savings.${name}`, ...values);
}
