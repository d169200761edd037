/**
 * Chats as files: they are chosen or dropped on the page to come in, and saved to go out. Knows the dialog that tells
 * how far it is and what came of it. Formats are not its business; see transfer/.
 */

import { h } from "./dom.js";
import { figure } from "./format.js";
import { text } from "../texts.js";

// Most visits need none of them: formats are loaded when a file goes out or comes in.
const FORMATS = {
  json: {
    make: async (entries) => (await import("../transfer/own.js")).written(entries),
    extension: "json",
    type: "application/json",
  },
  markdown: {
    make: async (entries) => (await import("../transfer/markdown.js")).inMarkdown(entries),
    extension: "md",
    type: "text/markdown;charset=utf-8",
  },
};
const FATES = ["added", "known", "empty", "tooLong", "broken", "foreign", "leftOut"];

export class Transfer {
  #chat;
  #dialog;
  #files = h("div", { class: "files", role: "status" });
  #button = h("button", { type: "button", class: "button" });
  #stopping = null;

  /**
   * @param root where dialogs are
   * @param button opens the menu of what can be done with all chats
   * @param menu the Menu
   * @param chat the Chat
   */
  constructor(root, button, menu, chat) {
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
    const field = fileField((files) => this.import(files));
    root.append(this.#dialog, field);
    bindDrop(root, (files) => this.import(files));
    button.addEventListener("click", () =>
      menu.toggle(button, [
        { icon: "upload", text: text("transfer.import"), act: () => field.click() },
        { icon: "download", text: text("transfer.allJson"), act: () => this.exportAll("json") },
        { icon: "download", text: text("transfer.allMarkdown"), act: () => this.exportAll("markdown") },
      ]),
    );
  }

  /** @param format "json" or "markdown" */
  async exportOne(id, format) {
    const entry = await this.#chat.whole(id);
    await save(entry.conversation.title, format, [entry]);
  }

  async exportAll(format) {
    const day = new Date().toLocaleDateString("sv");
    await save(`${text("transfer.fileName")} ${day}`, format, await this.#chat.everything());
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

async function save(title, format, entries) {
  const { make, extension, type } = FORMATS[format];
  const { download, fileName } = await import("../transfer/download.js");
  await download(fileName(title, extension, text("transfer.fileName")), type, await make(entries));
}

/** The browser's own way to choose files; it shows nothing of itself. */
function fileField(onfiles) {
  const field = h("input", { type: "file", multiple: true, hidden: true, accept: ".json,.jsonl,application/json" });
  field.addEventListener("change", () => {
    void onfiles([...field.files]);
    // The same file may be chosen again.
    field.value = "";
  });
  return field;
}

/** While files are dragged over the page, a cover says what would become of them. */
function bindDrop(root, onfiles) {
  const cover = h(
    "div",
    { class: "drop", popover: "manual" },
    h("p", {}, h("strong", {}, text("transfer.drop")), h("span", {}, text("transfer.formats"))),
  );
  root.append(cover);
  const isOpen = () => cover.matches(":popover-open");
  const holdsFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (holdsFiles(event) && !isOpen() && !document.querySelector("dialog:modal")) cover.showPopover();
  });
  cover.addEventListener("dragleave", () => cover.hidePopover());
  // Nowhere on the page may the browser open the file in the page's place.
  addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    if (!isOpen()) return;
    cover.hidePopover();
    void onfiles([...event.dataTransfer.files]);
  });
}
