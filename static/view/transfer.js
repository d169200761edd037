/**
 * Chats as files: they are chosen or dropped on the page to come in, and saved to go out. Formats are not its business;
 * see transfer/.
 */

import { Door } from "./door.js";
import { h } from "./dom.js";
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

export class Transfer {
  #chat;

  /**
   * @param root where dialogs are
   * @param button opens the menu of what can be done with all chats
   * @param menu the Menu
   * @param chat the Chat
   * @param ontrouble called when what takes files in could not be loaded
   */
  constructor(root, button, menu, chat, ontrouble) {
    this.#chat = chat;
    const door = new Door({
      load: () => import("./import.js"),
      styles: "/static/styles/transfer.css",
      make: ({ ImportDialog }) => new ImportDialog(root, chat),
      ontrouble,
    });
    const take = (files) => door.open((dialog) => dialog.import(files));
    const field = fileField(take);
    root.append(field);
    bindDrop(root, take);
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
