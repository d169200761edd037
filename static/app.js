/**
 * Puts the page together: one socket, one store, and the views that show them.
 * Knows which conversation is on screen (the address keeps it, as `#c=<id>`) and who must hear of what.
 */

import { Announcer } from "./announce.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Follower } from "./follow.js";
import { LinkView } from "./link.js";
import { Sidebar } from "./sidebar.js";
import { openStore } from "./store.js";
import { Connection, Tickwire } from "./tickwire.js";
import { endingOf, Transcript } from "./transcript.js";

const LAST_OPEN = "tickwire.open";
const $ = (selector) => document.querySelector(selector);

const url = new URL("/v1/responses", location.href);
url.protocol = url.protocol.replace("http", "ws");
const wire = new Tickwire(url.href);
const store = await openStore();
const chat = new Chat(store, wire);

let current = null;

const announcer = new Announcer($("#announcer"));
const link = new LinkView($("#link"), $("#strip"), () => wire.connect());
const composer = new Composer($("#composer"), { onsend: ask, onstop: () => chat.stop(current) });
const sidebar = new Sidebar($("#sidebar"), $("#conversations"), $("#menu"), { onopen: show, onremove: confirmRemoval });
const transcript = new Transcript($("#transcript"), { retry: () => chat.retry(current), begin: () => show(null) });
const follower = new Follower($("#scroller"), $("#transcript"), () => showJump());

function ask(text) {
  const id = chat.ask(current, text);
  if (id !== current) void show(id);
  follower.jump();
}

/** Shows a conversation, or with null the empty page on which the next one begins. */
async function show(id) {
  current = id;
  remember(id);
  sidebar.close();
  const path = id ? await chat.open(id) : [];
  // While it was read from the store, the reader may have gone elsewhere.
  if (current !== id) return;
  showPath(path);
  showList();
  follower.jump();
  composer.focus();
}

function showPath(path) {
  document.body.dataset.view = path.length ? "conversation" : "empty";
  const title = current ? chat.title(current) : "New chat";
  document.title = `${title} · Tickwire`;
  $("#title").textContent = title;
  transcript.show(path);
  composer.busy = current !== null && chat.isBusy(current);
  showJump();
}

function showList() {
  sidebar.show(chat.list, current, (id) => chat.isBusy(id));
}

function showJump() {
  $("#jump").hidden = follower.following || document.body.dataset.view === "empty";
}

/** The address names the conversation, so that reload, back and a second tab each find theirs. */
function remember(id) {
  const hash = id ? `#c=${id}` : "";
  if (location.hash !== hash) {
    const address = hash || location.pathname;
    if (document.body.dataset.ready) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
  try {
    if (id) localStorage.setItem(LAST_OPEN, id);
    else localStorage.removeItem(LAST_OPEN);
  } catch {
    // Storage is blocked: the address alone remembers.
  }
}

function addressed() {
  const id = location.hash.match(/^#c=(\w+)$/)?.[1];
  return chat.has(id) ? id : null;
}

function lastOpen() {
  try {
    const id = localStorage.getItem(LAST_OPEN);
    return chat.has(id) ? id : null;
  } catch {
    return null; // As in remember().
  }
}

function confirmRemoval(id) {
  const dialog = $("#removal");
  dialog.querySelector("strong").textContent = chat.title(id);
  dialog.onclose = async () => {
    if (dialog.returnValue !== "delete") return;
    // What is seen to be gone must be gone, even if the page is reloaded at once.
    await chat.remove(id);
    if (id === current) void show(null);
  };
  dialog.returnValue = "";
  dialog.showModal();
}

function notify(text) {
  const notice = $("#notice");
  notice.querySelector("p").textContent = text;
  notice.hidden = false;
}

async function askForModel() {
  try {
    const reply = await fetch("/v1/models");
    const models = (await reply.json()).data;
    chat.model = models[0].id;
    link.model = chat.model;
  } catch {
    // The name is a nicety; the socket says by itself when the server is not there.
  }
}

chat.addEventListener("list", showList);
chat.addEventListener("path", ({ detail }) => {
  if (detail.conversationId === current) showPath(chat.path(current));
});
chat.addEventListener("text", ({ detail: { message } }) => {
  transcript.update(message);
  if (message.conversation === current) announcer.grow(message);
});
chat.addEventListener("settled", ({ detail: { message } }) => {
  transcript.settle(message);
  if (message.conversation !== current) return;
  announcer.finish(message, message.error?.message ?? endingOf(message));
  composer.busy = chat.isBusy(current);
});
chat.addEventListener("trouble", ({ detail }) => {
  notify(`This browser could not keep the conversation: ${detail.error.message}`);
});

wire.addEventListener("connection", ({ detail }) => {
  link.show(detail);
  if (detail.state === Connection.OPEN && chat.model === null) void askForModel();
});
wire.addEventListener("notice", ({ detail }) => notify(detail.message));
link.show(wire.connection);
if (wire.connection.state === Connection.OPEN) void askForModel();

$("#new-chat").addEventListener("click", () => show(null));
$("#new-chat-top").addEventListener("click", () => show(null));
$("#jump").addEventListener("click", () => follower.jump());
$("#notice button").addEventListener("click", () => {
  $("#notice").hidden = true;
});
for (const button of document.querySelectorAll(".suggestion")) {
  button.addEventListener("click", () => ask(button.dataset.prompt));
}
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || $("#removal").open) return;
  if (sidebar.isOpen) sidebar.close();
  else if (current) chat.stop(current);
});
addEventListener("popstate", () => show(addressed()));
addEventListener("pagehide", () => chat.saveRunning());

await chat.load();
await show(addressed() ?? lastOpen());
document.body.dataset.ready = "yes";
if (!store.lasting) notify("This browser keeps no conversations for this page: they last until it is closed.");
