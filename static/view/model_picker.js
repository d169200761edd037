/** Chooses among the server's models. It calls `onchoose(id)`, with null for whichever the server takes itself. */

import { text } from "../texts.js";
import { h } from "./dom.js";
import { selectBox } from "./fields.js";

const OWN = "";

export class ModelPicker {
  element;
  #select = h("select", { id: "model" });

  constructor(onchoose) {
    this.#select.addEventListener("change", () => onchoose(this.#select.value || null));
    const label = h("label", { for: "model" }, text("setup.model"));
    this.element = h("div", { class: "field" }, label, selectBox(this.#select));
  }

  /** @param {string | null} chosen @param models entries of `GET /v1/models` */
  show(chosen, models) {
    const names = models.map(({ id }) => id);
    // A model that this server does not have is still what the conversation asks for.
    if (chosen !== null && !names.includes(chosen)) names.push(chosen);
    const own = h("option", { value: OWN }, text("setup.ownModel", models[0]?.id));
    this.#select.replaceChildren(own, ...names.map((id) => h("option", { value: id }, id)));
    this.#select.value = chosen ?? OWN;
  }
}
