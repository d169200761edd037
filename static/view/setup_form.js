/**
 * How the next question is answered: preset, model, system prompt, sampling. Knows which fields there are and in what
 * order; ranges and defaults are the server's. It calls `onchange(setup)`.
 */

import { withPreset } from "../model/setup.js";
import { text } from "../texts.js";
import { h } from "./dom.js";
import { LinesField, NumberField } from "./fields.js";
import { ModelPicker } from "./model_picker.js";
import { PresetPicker } from "./preset_picker.js";

const FIRST = ["temperature", "top_p", "max_output_tokens"];
const MORE = ["min_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop"];
const UNSLIDABLE = ["max_output_tokens", "top_k", "seed"];

export class SetupForm {
  element;
  #setup = null;
  #presets;
  #model;
  #system = h("textarea", { id: "system", rows: 2, dir: "auto", placeholder: text("setup.noSystem") });
  #fields;
  #unknown = h("p", { class: "help" }, text("setup.rangesUnknown"));
  #onchange;

  /** @param handlers {onchange(setup), onkeep(presets)} */
  constructor({ onchange, onkeep }) {
    this.#onchange = onchange;
    this.#presets = new PresetPicker({ onkeep, onchoose: (preset) => onchange(withPreset(this.#setup, preset)) });
    this.#model = new ModelPicker((model) => this.#change({ model }));
    this.#system.addEventListener("change", () => this.#change({ system: this.#system.value.trim() }));
    this.#fields = new Map([...FIRST, ...MORE].map((name) => [name, this.#field(name)]));
    const elements = (names) => names.map((name) => this.#fields.get(name).element);
    this.element = h(
      "div",
      { class: "setup" },
      this.#presets.element,
      this.#model.element,
      h("div", { class: "field" }, h("label", { for: "system" }, text("setup.system")), this.#system),
      this.#unknown,
      ...elements(FIRST),
      h("details", {}, h("summary", {}, text("setup.more")), ...elements(MORE)),
    );
  }

  /** @param models a Models @param own one's own presets */
  show(setup, models, own) {
    this.#setup = setup;
    this.#presets.show(setup, own);
    this.#model.show(setup.model, models.list);
    if (this.#system !== document.activeElement) this.#system.value = setup.system;
    const ranges = models.find(setup.model)?.sampling;
    this.#unknown.hidden = ranges !== undefined;
    for (const [name, field] of this.#fields) field.show(setup.sampling[name], ranges?.[name]);
  }

  #field(name) {
    const onchange = (value) => {
      const { [name]: _, ...others } = this.#setup.sampling;
      this.#change({ sampling: value === undefined ? others : { ...others, [name]: value } });
    };
    if (name === "stop") return new LinesField(name, { onchange });
    return new NumberField(name, { onchange, slider: !UNSLIDABLE.includes(name) });
  }

  #change(fields) {
    this.#onchange({ ...this.#setup, ...fields });
  }
}
