/**
 * Puts the page together: one socket, one store, and the views that show them.
 * Knows what is on screen (the address keeps it: see view/address.js) and who must hear of what.
 */

import { EngineDoor } from "./engine/door.js";
import { Access } from "./model/access.js";
import { Chat } from "./model/chat.js";
import { Drafts } from "./model/drafts.js";
import { Live } from "./model/live.js";
import { Models } from "./model/models.js";
import { Preferences } from "./model/preferences.js";
import { Server } from "./model/server.js";
import { openStore } from "./model/store.js";
import { Tabs } from "./model/tabs.js";
import { WarmUp } from "./model/warm_up.js";
import { language, say, text } from "./texts.js";
import { Tickwire } from "./tickwire.js";
import { ChatActs } from "./view/acts.js";
import { address } from "./view/address.js";
import { Announcer } from "./view/announce.js";
import { Composer } from "./view/composer.js";
import { ContextMeter } from "./view/context.js";
import { Door } from "./view/door.js";
import { endingOf } from "./view/figures.js";
import { Follower } from "./view/follow.js";
import { Keys } from "./view/keys.js";
import { LinkView } from "./view/link.js";
import { Menu } from "./view/menu.js";
import { Notice } from "./view/notice.js";
import { RemovalDialog } from "./view/removal.js";
import { SearchDoor } from "./view/search_door.js";
import { Settings } from "./view/settings.js";
import { bindShortcuts } from "./view/shortcuts.js";
import { Sidebar } from "./view/sidebar.js";
import { Transcript } from "./view/transcript.js";
import { Transfer } from "./view/transfer.js";
import { showWelcome } from "./view/welcome.js";

const $ = (selector) => document.querySelector(selector);

document.documentElement.lang = language.code;
document.documentElement.dir = language.dir;
say(document);

const url = new URL("/v1/responses", location.href);
url.protocol = url.protocol.replace("http", "ws");
const preferences = new Preferences();
const wire = new Tickwire(url.href, { token: preferences.apiKey });
const server = new Server(preferences);
const models = new Models(server);
const store = await openStore();
const chat = new Chat(store, wire, new Tabs());
const drafts = new Drafts();
const warmUp = new WarmUp(wire, chat, preferences);

let current = null;

const keys = new Keys();
const announcer = new Announcer();
const link = new LinkView($("#link"), $("#strip"), () => wire.connect(), () => settings.askForKey());
const composer = new Composer($("#composer"), {
  onsend: (question) => {
    write("");
    ask(question);
  },
  onstop: () => chat.stop(current),
  onchange: write,
});
const notice = new Notice($("#notice"));
const notLoaded = () => notice.show(text("page.notLoaded"));
const removal = new RemovalDialog($("#dialogs"));
const acts = new ChatActs(chat, removal);
const menu = new Menu();
const transfer = new Transfer($("#dialogs"), $("#chats-menu"), menu, chat, notLoaded);
const sidebar = new Sidebar($("#sidebar"), $("#conversations"), $("#menu"), menu, {
  onopen: show,
  onrename: (id, title) => chat.rename(id, title),
  onpin: (id, pinned) => acts.pin(id, pinned),
  onexport: (id, format) => transfer.exportOne(id, format),
  onremove: (id) => acts.remove(id),
});
const follower = new Follower($("#scroller"), $("#transcript"), (isFar) => {
  $("#jump").hidden = !isFar;
});
const live = new Live(chat);
const transcript = new Transcript($("#transcript"), chat, {
  live,
  follower,
  removal,
  meter: new ContextMeter($("#context")),
  limit: () => models.find(settings.setup.model)?.max_model_len ?? null,
  focus: () => composer.focus(),
  begin: () => show(null),
});
const help = new Door({
  load: () => import("./view/help.js"),
  styles: "/static/styles/help.css",
  make: ({ HelpDialog }) => new HelpDialog($("#dialogs"), keys),
  ontrouble: notLoaded,
});
const search = new SearchDoor($("#dialogs"), $("#open-search"), { chat, onopen: showAt, ontrouble: notLoaded });
const settings = new Settings({ chat, preferences, models }, $("#dialogs"), $("#settings-open"), {
  exportAll: () => transfer.exportAll("json"),
  removeAll: () => acts.removeAll(),
  ontrouble: notLoaded,
});
showWelcome($("#welcome"), ask);
const engine = new EngineDoor($("#engine-view"), {
  wire,
  headers: () => server.headers,
  responseIds: () => chat.list.map(({ id }) => chat.running(id)?.responseId).filter(Boolean),
  onback: () => show(current),
  ontrouble: notLoaded,
});

function write(draft) {
  drafts.set(current, draft);
  warmUp.draft(current, draft, settings.setup);
}

function ask(question) {
  const id = chat.ask(current, question, settings.setup);
  if (id !== current) void show(id);
  follower.jump();
}

/**
 * Shows a conversation, or with null the empty page on which the next one begins. The focus goes to the composer; where
 * the reader did not ask for this, only if it would be lost otherwise.
 */
async function show(id, { asked = true } = {}) {
  current = id;
  engine.close();
  live.watch(id);
  settings.follow(id);
  warmUp.stop();
  composer.text = drafts.get(id);
  address.nameConversation(id);
  sidebar.close();
  const path = id ? await chat.open(id) : [];
  // While it was read from the store, the reader may have gone elsewhere.
  if (current !== id) return;
  showPath(path);
  showList();
  announcer.skip(path);
  follower.jump();
  if (asked || document.activeElement === document.body) composer.focus();
}

/** Shows a conversation at one of its messages, or with null at its end. Resolves to that message's element. */
async function showAt(id, found) {
  await show(id);
  // It may have been removed since it was found.
  const message = found && chat.siblings(found).find((each) => each.id === found.id);
  if (!message || current !== id) return null;
  if (!chat.path(id).includes(message)) chat.choose(message);
  return $(`[data-message="${message.id}"]`);
}

/** Shows the engine; the conversation stays where it is, behind it. */
function showEngine() {
  sidebar.close();
  address.nameEngine();
  engine.open();
  showTitle();
}

/** Goes where the address leads. */
function go() {
  if (address.isEngine) showEngine();
  else void show(known(address.conversation));
}

/** The id of a conversation, or null where there is none of that name any more. */
function known(id) {
  return chat.has(id) ? id : null;
}

function showPath(path) {
  if (!engine.isOpen) document.body.dataset.view = path.length ? "conversation" : "empty";
  showTitle();
  transcript.show(path);
  composer.busy = current !== null && chat.isBusy(current);
}

function showTitle() {
  const title = engine.isOpen ? text("engine.title") : (chat.get(current)?.title ?? text("page.newChat"));
  document.title = text("page.title", title);
  $("#title").textContent = title;
}

function showList() {
  sidebar.show(chat.list, current, (id) => chat.isBusy(id));
  showTitle();
  showModel();
}

function showModel() {
  link.model = models.find(settings.setup.model)?.id ?? "";
}

models.addEventListener("change", () => {
  showModel();
  transcript.refresh();
});
preferences.addEventListener("change", showModel);
chat.addEventListener("list", () => {
  if (current && !chat.has(current)) void show(null, { asked: false });
  else showList();
});
chat.addEventListener("path", ({ detail }) => {
  if (detail.conversationId === current) showPath(chat.path(current));
});
chat.addEventListener("text", ({ detail: { message } }) => {
  transcript.update(message);
  if (message.conversation === current) announcer.grow(message);
});
chat.addEventListener("settled", ({ detail: { message } }) => {
  transcript.settle(message);
  if (message.conversation !== current) return sidebar.markUnread(message.conversation);
  announcer.finish(message, message.error?.message ?? endingOf(message));
  composer.busy = chat.isBusy(current);
});
chat.addEventListener("trouble", ({ detail }) => notice.show(text("page.notKept", detail.error.message)));

wire.addEventListener("connection", ({ detail }) => link.show(detail));
wire.addEventListener("notice", ({ detail }) => notice.show(detail.message));
link.show(wire.connection);

$("#new-chat").addEventListener("click", () => show(null));
$("#new-chat-top").addEventListener("click", () => show(null));
$("#open-help").addEventListener("click", () => help.open((dialog) => dialog.show()));
$("#skip").addEventListener("click", () => $("#composer textarea").focus());
$("#jump").addEventListener("click", () => follower.jump());
bindShortcuts(keys, {
  acts, chat, engine, follower, help, search, settings, sidebar, transcript, show, showEngine,
  get current() {
    return current;
  },
});
addEventListener("popstate", go);
addEventListener("pagehide", () => chat.saveAtOnce());

await chat.load();
drafts.keepOnly((id) => chat.has(id));
const isEngineAsked = address.isEngine;
await show(known(address.conversation) ?? known(address.lastConversation));
if (isEngineAsked) showEngine();
document.body.dataset.ready = "yes";
new Access(wire, models, preferences).addEventListener("wanted", () => settings.askForKey());
if (!store.lasting) notice.show(text("page.keepsNothing"));
