/**
 * All that can be done by keys alone, and which keys do it, in the order in which the help explains them.
 *
 * Knows who does it, through `page`. Combinations are none that a browser keeps for itself, and where other chats have
 * one for the same thing, it is theirs.
 */

import { language } from "../texts.js";

const MESSAGE = "#composer textarea";
const EMPTY_MESSAGE = `${MESSAGE}:placeholder-shown`;

/**
 * @param page {chat, current, acts, show(id), showEngine(), search, settings, sidebar, transcript, follower, engine,
 *   help}: the conversation on screen, null where there is none, and all around it
 */
export function bindShortcuts(keys, page) {
  bindChats(keys, page);
  bindPage(keys, page);
  bindAnswers(keys, page);
}

function bindChats(keys, page) {
  const on = (combination, name, act) => keys.on(combination, name, act, { group: "keys.chats" });
  const { chat, sidebar } = page;
  const withCurrent = (act) => () => (page.current ? void act(page.current) : false);
  on("mod+shift+o", "keys.newChat", () => void page.show(null));
  on("mod+k", "keys.search", () => void page.search.open());
  on("alt+arrowup", "keys.previousChat", () => go(page, -1));
  on("alt+arrowdown", "keys.nextChat", () => go(page, 1));
  on("f2", "keys.rename", withCurrent((id) => sidebar.rename(id)));
  on("mod+shift+u", "keys.pin", withCurrent((id) => page.acts.pin(id, !chat.get(id).pinned)));
  on("mod+shift+backspace", "keys.removeChat", withCurrent((id) => page.acts.remove(id)));
}

function bindPage(keys, page) {
  keys.on("/", "keys.message", () => void document.querySelector(MESSAGE).focus());
  keys.on("mod+shift+s", "keys.sidebar", () => void page.sidebar.toggle());
  keys.on("mod+shift+e", "keys.engine", () => (page.engine.isOpen ? void page.show(page.current) : page.showEngine()));
  keys.on("mod+,", "keys.settings", () => void page.settings.toggle());
  const help = () => void page.help.open((dialog) => dialog.show());
  keys.on("?", "keys.help", help);
  keys.on("mod+/", "keys.help", help);
}

function bindAnswers(keys, page) {
  const on = (combination, name, act, where) => keys.on(combination, name, act, { group: "keys.here", where });
  const { transcript } = page;
  // Branches lie side by side: what comes before stands on the side where a line of text begins.
  const [before, behind] = language.dir === "rtl" ? ["right", "left"] : ["left", "right"];
  on("escape", "keys.stop", () => closeOrStop(page));
  on("mod+shift+enter", "keys.regenerate", () => transcript.regenerateLast());
  on("mod+shift+y", "keys.continue", () => transcript.continueLast());
  on("arrowup", "keys.edit", () => transcript.editLast(), EMPTY_MESSAGE);
  on("mod+shift+c", "keys.copy", () => transcript.copyLast());
  on(`alt+shift+arrow${before}`, "keys.previousBranch", () => transcript.previousBranch());
  on(`alt+shift+arrow${behind}`, "keys.nextBranch", () => transcript.nextBranch());
  on("f6", "keys.latestAnswer", focusLatest);
  on("mod+arrowup", "keys.latestAnswer", focusLatest);
  on("mod+arrowdown", "keys.jump", () => void page.follower.jump());
}

/** Shows the conversation that stands so many places further down in the list. */
function go({ chat, current, show }, step) {
  const { list } = chat;
  const at = list.findIndex(({ id }) => id === current);
  const next = at < 0 ? list[0] : list[at + step];
  if (!next) return false;
  void show(next.id);
}

/** What lies on top goes first. */
function closeOrStop({ sidebar, engine, chat, current, show }) {
  if (sidebar.isOpen) sidebar.close();
  else if (engine.isOpen) void show(current);
  else if (current && chat.isBusy(current)) chat.stop(current);
  else return false;
}

function focusLatest() {
  const answer = document.querySelector("#transcript > .assistant:last-child");
  if (!answer) return false;
  answer.tabIndex = -1;
  answer.focus();
}
