/**
 * Chats come in from files: the dialog that tells how far it is and what came of it. Formats are not its business; see
 * transfer/.
 */

import { h } from "./dom.js";
import { figure } from "./format.js";
import { text } from "../texts.js";

const FATES = ["added", "known", "empty", "tooLong", "broken", "foreign", "leftOut"];

export class ImportDialog {
  #chat;
  #dialog;
  #files = h("div", { class: "files", role: "status" });
  #button = h("button", { type: "button", class: "button" });
  #stopping = null;

  /**
   * @param root where dialogs are
   * @param chat the Chat that takes them in
   */
  constructor(root, chat) {
    this.#chat = chat;
    this.#dialog = h(
      "dialog",
      { id: "transfer", "aria-labelledby": "transfer-title" },
      h("h2", { id: "transfer-title" }, text("transfer.title")),
      this.#files,
      h("div", { class: "choices" }, this.#button),
    );
    this.#button.addEventListener("click", () => (this.#stopping ? this.#stopping.abort() : this.#dialog.close()));
    // While chats come in, closing means to stop.
    this.#dialog.addEventListener("cancel", () => this.#stopping?.abort());
    root.append(this.#dialog);
  }

  async import(files) {
    if (this.#stopping) return;
    this.#stopping = new AbortController();
    this.#files.replaceChildren();
    this.#button.textContent = text("transfer.stop");
    if (!this.#dialog.open) this.#dialog.showModal();
    for (const file of files) if (!this.#stopping.signal.aborted) await this.#importOne(file);
    this.#stopping = null;
    this.#button.textContent = text("page.close");
  }

  async #importOne(file) {
    const bar = h("progress", { max: "1", value: "0", "aria-label": text("transfer.reading", file.name) });
    const outcome = h("ul", {});
    this.#files.append(h("section", {}, h("h3", { dir: "auto" }, file.name), bar, outcome));
    try {
      const { importFile, namesOf } = await import("../transfer/import.js");
      const result = await importFile(file, {
        here: namesOf(this.#chat.list),
        add: (entries) => this.#chat.addAll(entries),
        onprogress: (part) => (bar.value = part),
        signal: this.#stopping.signal,
      });
      const told = FATES.filter((fate) => result[fate] || fate === "added");
      outcome.append(...told.map((fate) => h("li", {}, text(`transfer.${fate}`, result[fate], figure(result[fate])))));
      if (this.#stopping.signal.aborted) outcome.append(h("li", {}, text("transfer.stopped")));
    } catch (error) {
      // A NotChats says why.
      if (!error.reason) console.warn("A file could not be imported:", error);
      const reason = error.reason ? text(`transfer.not.${error.reason}`, error.detail) : error.message;
      outcome.append(h("li", { class: "failed" }, reason));
    }
    bar.remove();
  }
}
