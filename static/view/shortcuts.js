/**
 * All that can be done by keys alone, and which keys do it, in the order in which the help explains them.
 *
 * Knows the conversation on screen through `page`. Combinations are none that a browser keeps for itself, and where
 * other chats have one for the same thing, it is theirs.
 */

import { isRunning } from "../model/chat.js";
import { language, text } from "../texts.js";
import { announce } from "./announce.js";
import { copyText, sayCopied } from "./clipboard.js";

const MESSAGE = "#composer textarea";
const EMPTY_MESSAGE = `${MESSAGE}:placeholder-shown`;
const BY_NAME = { group: "keys.chats" };
const HERE = { group: "keys.here" };

/** @param page {chat, current, show(id), remove(id), sidebar, composer, transcript, follower, help} */
export function bindShortcuts(keys, page) {
  bindChats(keys, page);
  bindAnswers(keys, page);
  bindPage(keys, page);
}

function bindChats(keys, page) {
  const { chat } = page;
  const go = (step) => {
    const { list } = chat;
    const at = list.findIndex(({ id }) => id === page.current);
    const next = at < 0 ? list[0] : list[at + step];
    if (!next) return false;
    void page.show(next.id);
  };
  keys.on("mod+shift+o", "keys.newChat", () => void page.show(null), BY_NAME);
  keys.on("alt+arrowup", "keys.previousChat", () => go(-1), BY_NAME);
  keys.on("alt+arrowdown", "keys.nextChat", () => go(1), BY_NAME);
  keys.on("mod+shift+backspace", "keys.removeChat", () => (page.current ? void page.remove(page.current) : false), BY_NAME);
}

function bindAnswers(keys, page) {
  const { chat } = page;
  const path = () => (page.current ? chat.path(page.current) : []);
  const latest = () => path().findLast(({ role, text }) => role === "assistant" && text);
  keys.on("escape", "keys.stop", () => stopOrClose(page), HERE);
  keys.on("mod+shift+enter", "keys.regenerate", () => {
    const last = path().at(-1);
    if (last?.role !== "assistant" || isRunning(last)) return false;
    chat.regenerate(last);
  }, HERE);
  keys.on("mod+shift+c", "keys.copy", () => (latest() ? void copyText(latest().text).then(sayCopied) : false), HERE);
  // Branches lie side by side: what comes before stands on the side where a line of text begins.
  const [before, behind] = language.dir === "rtl" ? ["right", "left"] : ["left", "right"];
  keys.on(`alt+shift+arrow${before}`, "keys.previousBranch", () => turn(chat, path(), -1), HERE);
  keys.on(`alt+shift+arrow${behind}`, "keys.nextBranch", () => turn(chat, path(), 1), HERE);
  keys.on("f6", "keys.latestAnswer", focusLatest, HERE);
  keys.on("mod+arrowup", "keys.latestAnswer", focusLatest, HERE);
  keys.on("mod+arrowdown", "keys.jump", () => void page.follower.jump(), HERE);
}

function bindPage(keys, page) {
  keys.on("/", "keys.message", () => void document.querySelector(MESSAGE).focus());
  keys.on("mod+shift+s", "keys.sidebar", () => void page.sidebar.toggle());
  keys.on("?", "keys.help", () => void page.help.show());
  keys.on("mod+/", "keys.help", () => void page.help.show());
}

/** What lies on top goes first. */
function stopOrClose({ sidebar, chat, current }) {
  if (sidebar.isOpen) sidebar.close();
  else if (current && chat.isBusy(current)) chat.stop(current);
  else return false;
}

/** Goes one branch on, at the last place where there are several. */
function turn(chat, path, step) {
  const place = path.findLast((message) => chat.siblings(message).length > 1);
  if (!place) return false;
  const siblings = chat.siblings(place);
  const next = siblings[siblings.indexOf(place) + step];
  if (!next) return false;
  chat.choose(next);
  announce(text("speech.branch", siblings.indexOf(next) + 1, siblings.length));
}

function focusLatest() {
  const answer = document.querySelector("#transcript > .assistant:last-child");
  if (!answer) return false;
  answer.tabIndex = -1;
  answer.focus();
}
