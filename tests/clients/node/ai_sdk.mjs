// What pages and servers made with the AI SDK do. `node ai_sdk.mjs BASE_URL KEY SCENARIO...` prints one JSON object,
// a field for each scenario. BASE_URL ends in /v1; KEY is an API key.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { AbstractChat, generateText, streamText, WebSocketChatTransport } from "ai";
import WS from "ws";

const [baseURL, apiKey, ...names] = process.argv.slice(2);
const LONG = 2000; // tokens of an answer that is not to end by itself
const socketURL = baseURL.replace("/v1", "/api/chat");

/** The state of a page, and someone who looks at it after every change. */
class State {
  status = "ready";
  error = undefined;
  messages = [];
  onChange = () => {};
  pushMessage = (message) => this.#set([...this.messages, structuredClone(message)]);
  popMessage = () => this.#set(this.messages.slice(0, -1));
  replaceMessage = (index, message) => this.#set(this.messages.with(index, structuredClone(message)));
  snapshot = (thing) => structuredClone(thing);
  #set(messages) {
    this.messages = messages;
    this.onChange();
  }
}

/** What `useChat` is without React. */
class Page extends AbstractChat {
  constructor(transport, body = {}) {
    const state = new State();
    const finishes = [];
    super({ state, transport, onFinish: (finish) => finishes.push(finish) });
    this.state = state;
    this.finishes = finishes;
    this.options = { body: { temperature: 0, max_tokens: 30, ...body } };
  }
  ask(text) {
    return this.sendMessage({ text }, this.options);
  }
  get told() {
    return this.messages.map(({ role, parts }) => [role, textOf(parts)]);
  }
  get ids() {
    return this.messages.map(({ id }) => id);
  }
}

const textOf = (parts = []) => parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("");

/** A transport whose sockets are cut after as many messages as `cuts` says, one after the other. */
function transport(cuts = [], key = apiKey) {
  const sockets = [];
  class Socket extends WS {
    constructor(...args) {
      super(...args);
      this.left = cuts[sockets.length] ?? Infinity;
      sockets.push(this);
    }
    set onmessage(take) {
      super.onmessage = (message) => {
        if (this.left <= 0) return;
        take(message);
        this.left -= 1;
        if (this.left === 0) this.terminate();
      };
    }
  }
  // A browser's sockets have no headers of their own: these are sent with each request.
  const headers = { Authorization: `Bearer ${key}` };
  return Object.assign(new WebSocketChatTransport({ url: socketURL, webSocket: Socket, headers }), { sockets });
}

/** Resolves when the page shows some of an answer. */
function begun(page) {
  return new Promise((resolve) => {
    page.state.onChange = () => {
      if (page.lastMessage?.role === "assistant" && textOf(page.lastMessage.parts)) resolve();
    };
  });
}

const scenarios = {
  async talk() {
    const wire = transport();
    const page = new Page(wire);
    await page.ask("one");
    await page.ask("two");
    const before = page.ids.at(-1);
    await page.regenerate(page.options);
    const others = [new Page(wire), new Page(wire)];
    await Promise.all(others.map((other, index) => other.ask(`page ${index}`)));
    wire.close();
    return {
      told: page.told,
      states: page.messages.flatMap(({ parts }) => parts.map((part) => part.state ?? part.type)),
      distinct: new Set([...page.ids, before]).size,
      usage: page.messages.at(-1).metadata.usage,
      finishes: page.finishes.map(({ finishReason, isError, isAbort }) => [finishReason, isError, isAbort]),
      others: others.map((other) => other.told.at(-1)[1]),
      sockets: wire.sockets.length,
      statuses: [page, ...others].map(({ status }) => status),
    };
  },

  async refusals() {
    const wire = transport();
    const page = new Page(wire, { temperature: 9 });
    await page.ask("hello");
    const refused = [page.status, page.error.message];
    page.options.body.temperature = 0;
    await page.regenerate(page.options);
    const file = { type: "file", mediaType: "text/plain", url: "data:text/plain,x" };
    await page.sendMessage({ text: "look", files: [file] }, page.options);
    const picture = page.error.message;
    const nothing = new Page(wire);
    await nothing.resumeStream();
    wire.close();
    const stranger = new Page(transport([], "another key"));
    await stranger.ask("hello");
    await stranger.dispose();
    return { stranger: stranger.error.message, refused, after: page.told[1], picture, nothing: [nothing.status, nothing.messages.length] };
  },

  async stop() {
    const wire = transport();
    const page = new Page(wire, { max_tokens: LONG });
    const asked = page.ask("long");
    await begun(page);
    await page.stop();
    await asked;
    const [{ isAbort }] = page.finishes;
    const other = new Page(wire, { max_tokens: 5 });
    other.state.messages = page.messages;
    await other.ask("more");
    wire.close();
    return { isAbort, stopped: page.told[1][1], status: page.status, after: other.told.at(-1)[1] };
  },

  /** The connection is cut while an answer is told, and the SDK takes the answer up again: several times. */
  async cuts() {
    const cuts = [1, 2, 4, 5, 8];
    const wire = transport(cuts);
    const page = new Page(wire, { max_tokens: 100 });
    const disconnects = [];
    await page.ask("long");
    const ids = new Set(page.ids);
    for (const _ of cuts) {
      disconnects.push(page.finishes.at(-1).isDisconnect);
      await page.resumeStream();
      page.ids.forEach((id) => ids.add(id));
    }
    const ended = page.told;
    await page.resumeStream();
    wire.close();
    return { disconnects, ended, again: page.told, ids: ids.size, status: page.status };
  },

  async provider() {
    const model = createOpenAICompatible({ name: "here", baseURL, apiKey, includeUsage: true })("fake-model");
    const asked = { model, prompt: "hello", maxOutputTokens: 30, temperature: 0, maxRetries: 0 };
    const whole = await generateText(asked);
    const streamed = streamText(asked);
    const pieces = [];
    for await (const piece of streamed.textStream) pieces.push(piece);
    const refused = await generateText({ ...asked, temperature: 3 }).catch((error) => error);
    return {
      whole: [whole.text, whole.finishReason],
      streamed: [pieces.join(""), await streamed.finishReason],
      pieces: pieces.length,
      usage: [whole.usage, await streamed.usage].map(({ inputTokens, outputTokens }) => [inputTokens, outputTokens]),
      refused: [refused.name, refused.statusCode, refused.message, refused.isRetryable],
    };
  },

  async provider_abort() {
    const model = createOpenAICompatible({ name: "here", baseURL, apiKey })("fake-model");
    const stop = new AbortController();
    const streamed = streamText({
      model,
      prompt: "long",
      maxOutputTokens: LONG,
      temperature: 0,
      maxRetries: 0,
      abortSignal: stop.signal,
    });
    let text = "";
    for await (const piece of streamed.textStream) {
      text += piece;
      if (text.length >= 5) stop.abort();
    }
    return { text };
  },
};

const results = {};
for (const name of names) results[name] = await scenarios[name]();
console.log(JSON.stringify(results));
