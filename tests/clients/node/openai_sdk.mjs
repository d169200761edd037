// What a user of the official OpenAI SDK for Node does. `node openai_sdk.mjs BASE_URL SCENARIO...` prints one JSON
// object, a key for each scenario.

import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [baseURL, ...names] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const options = { model: "fake-model", temperature: 0 };
const messages = [{ role: "user", content: "hello" }];

async function caught(promise) {
  const error = await promise.catch((error) => error);
  return [error.constructor.name, error.status, error.code, error.param, Boolean(error.requestID)];
}

/** Feeds a socket's events to `take` until it returns true. */
async function follow(socket, take) {
  for await (const { type, message, error } of socket.stream()) {
    if (type === "error" && !error.error) throw error;
    if (type === "message" && take(message)) return;
  }
}

const scenarios = {
  async chat() {
    const asked = { messages, max_tokens: 30, ...options };
    const whole = await client.chat.completions.create(asked);
    const withUsage = { stream: true, stream_options: { include_usage: true } };
    const chunks = await Array.fromAsync(await client.chat.completions.create({ ...asked, ...withUsage }));
    const final = await client.chat.completions.stream(asked).finalChatCompletion();
    return {
      whole: whole.choices[0].message.content,
      streamed: chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta.content ?? "")).join(""),
      finish: chunks.flatMap(({ choices }) => choices.map((each) => each.finish_reason)).at(-1),
      usage: [chunks.at(-1).usage.prompt_tokens, chunks.at(-1).usage.completion_tokens],
      final: final.choices[0].message.content,
      models: (await Array.fromAsync(client.models.list())).map(({ id }) => id),
      refused: await caught(client.chat.completions.create({ ...asked, temperature: 3 })),
    };
  },

  async responses() {
    const asked = { input: "hello", max_output_tokens: 30, ...options };
    const whole = await client.responses.create(asked);
    const events = await Array.fromAsync(await client.responses.create({ ...asked, stream: true }));
    const { id } = events.at(-1).response;
    const rest = await Array.fromAsync(await client.responses.retrieve(id, { stream: true, starting_after: 5 }));
    const final = await client.responses.stream(asked).finalResponse();
    return {
      whole: whole.output_text,
      streamed: events.flatMap(({ type, delta }) => (type === "response.output_text.delta" ? [delta] : [])).join(""),
      numbers: events.map((event) => event.sequence_number),
      rest: rest.map((event) => event.sequence_number),
      final: final.output_text,
      refused: await caught(client.responses.create({ ...asked, temperature: 3 })),
    };
  },

  async lanes() {
    const socket = new ResponsesWS(client);
    const texts = {};
    const final = {};
    for (const lane of ["left", "right"]) {
      const create = { type: "response.create", input: `I am ${lane}`, max_output_tokens: 100, stream_id: lane };
      socket.send({ ...create, ...options });
    }
    await follow(socket, ({ type, stream_id: lane, delta, response }) => {
      if (type === "response.output_text.delta") texts[lane] = (texts[lane] ?? "") + delta;
      if (type === "response.incomplete") final[lane] = response.output[0].content[0].text;
      return Object.keys(final).length === 2;
    });
    socket.close();
    return { texts, final };
  },

  /** An error leaves the socket open; `response.cancel` is an addition of ours. */
  async errors() {
    const socket = new ResponsesWS(client);
    const create = { type: "response.create", input: "hello", ...options };
    const told = [];
    socket.on("error", ({ error }) => told.push(error));
    socket.send({ ...create, temperature: 9 });
    socket.send({ ...create, max_output_tokens: 50_000 });
    let id, cancelled;
    let isAsked = false;
    await follow(socket, ({ type, response }) => {
      id ??= response?.id;
      if (type === "response.output_text.delta" && !isAsked) {
        isAsked = true;
        socket.send({ type: "response.cancel", response_id: id });
      }
      cancelled = response?.status;
      return type === "response.incomplete";
    });
    socket.close();
    const [{ type, status, error }] = told;
    return { error: [type, status, error.code, error.param], count: told.length, cancelled };
  },
};

const results = {};
for (const name of names) results[name] = await scenarios[name]();
console.log(JSON.stringify(results));
