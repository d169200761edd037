/**
 * Chooses among presets, and keeps one's own: saves, renames, deletes them. Knows names; what a preset says is
 * setup.js's. It calls `onchoose(preset)`, and `onkeep(presets)` with all of one's own when they changed.
 */

import { BUILT_IN, presetIn } from "../model/setup.js";
import { newId } from "../model/store.js";
import { text } from "../texts.js";
import { h } from "./dom.js";
import { selectBox } from "./fields.js";
import { presetName } from "./format.js";

const CHANGED = "";

export class PresetPicker {
  element;
  #select = h("select", { id: "preset" });
  #actions = h("div", { class: "actions" });
  #naming;
  #name = h("input", { id: "preset-name", dir: "auto", maxlength: "60", autocomplete: "off", required: true });
  /** Called with the name that was given. */
  #named = null;
  #own = [];
  #setup = null;
  #handlers;

  /** @param handlers {onchoose(preset), onkeep(presets)} */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#naming = h(
      "form",
      { class: "naming", hidden: true, onsubmit: (event) => this.#submit(event) },
      h("label", { for: "preset-name" }, text("preset.name")),
      this.#name,
      h("div", { class: "actions" },
        h("button", { class: "button primary" }, text("preset.save")),
        h("button", { type: "button", class: "button", onclick: () => this.#endNaming() }, text("preset.cancel")),
      ),
    );
    this.#naming.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault();
      this.#endNaming();
    });
    this.#select.addEventListener("change", () => this.#handlers.onchoose(this.#find(this.#select.value)));
    this.element = h(
      "div",
      { class: "field" },
      h("label", { for: "preset" }, text("preset.preset")),
      selectBox(this.#select),
      this.#actions,
      this.#naming,
    );
  }

  show(setup, own) {
    this.#setup = setup;
    this.#own = own;
    const current = presetIn(setup, own);
    const options = (presets) => presets.map((preset) => h("option", { value: preset.id }, presetName(preset)));
    const changed = h("option", { value: CHANGED, hidden: true }, text("preset.changed"));
    const mine = own.length ? h("optgroup", { label: text("preset.own") }, ...options(own)) : null;
    this.#select.replaceChildren(...[changed, ...options(BUILT_IN), mine].filter(Boolean));
    this.#select.value = current?.id ?? CHANGED;
    this.#offer(current);
  }

  #offer(current) {
    const isOwn = this.#own.includes(current);
    const button = (key, act) => h("button", { type: "button", class: "link-button", onclick: act }, text(key));
    this.#actions.replaceChildren(
      ...(isOwn
        ? [
            button("preset.rename", () => this.#ask(current.name, (name) => this.#rename(current, name))),
            button("preset.delete", () => this.#delete(current)),
          ]
        : [button("preset.saveAs", () => this.#ask("", (name) => this.#save(name)))]),
    );
  }

  #ask(name, named) {
    this.#named = named;
    this.#name.value = name;
    this.#actions.hidden = true;
    this.#naming.hidden = false;
    this.#name.focus();
    this.#name.select();
  }

  #submit(event) {
    event.preventDefault();
    const name = this.#name.value.trim();
    if (!name) return;
    this.#named(name);
    this.#endNaming();
  }

  #endNaming() {
    this.#naming.hidden = true;
    this.#actions.hidden = false;
    this.#select.focus();
  }

  /** One that has the name already becomes this. */
  #save(name) {
    const { model, system, sampling } = this.#setup;
    const others = this.#own.filter((preset) => preset.name !== name);
    this.#handlers.onkeep([...others, { id: newId(), name, setup: { model, system, sampling } }]);
  }

  #rename(renamed, name) {
    const others = this.#own.filter((preset) => preset === renamed || preset.name !== name);
    this.#handlers.onkeep(others.map((preset) => (preset === renamed ? { ...preset, name } : preset)));
  }

  /** What it said still stands in the fields. */
  #delete(preset) {
    this.#handlers.onkeep(this.#own.filter((each) => each !== preset));
    this.#select.focus();
  }

  #find(id) {
    return [...this.#own, ...BUILT_IN].find((preset) => preset.id === id);
  }
}
