// What users of `static/tickwire.js` do. `node tickwire.mjs CLIENT SCENARIO URL OPTIONS` prints one JSON object;
// CLIENT is the path of that file, OPTIONS a JSON object.

import { once } from "node:events";
import { pathToFileURL } from "node:url";
import WS, { WebSocketServer } from "ws";

const [client, scenario, url, options] = process.argv.slice(2);
const { Tickwire, isFinalClose } = await import(pathToFileURL(client));
const HELLO = { input: "hello", temperature: 0, max_output_tokens: 12 };

/** What a reader of an answer sees: its pieces, as it is told them, and how it ended. */
async function read(answer) {
  const pieces = [];
  let ends = 0;
  answer.addEventListener("state", () => (ends += answer.isFinal));
  for await (const piece of answer) pieces.push(piece);
  await answer.ended;
  const { text, status, error, usage, responseId, sequence } = answer;
  return { joined: pieces.join(""), text, status, error, usage, responseId, sequence, ends };
}

async function firstText(answer) {
  for await (const _ of answer) return;
}

const scenarios = {
  /** Each wire has two lanes and is cut somewhere else. */
  async cuts({ after, hows, times = 1 }) {
    const wires = hows.flatMap((how) =>
      after.map(async (number) => {
        const address = `${url}?name=${how}${number}&after=${number}&how=${how}&times=${times}`;
        const wire = new Tickwire(address, { retryMs: 5, pingMs: how === "silence" ? 30 : 15000 });
        const lanes = ["left", "right"].map((lane) => read(wire.respond({ ...HELLO, input: `I am ${lane}` })));
        const answers = await Promise.all(lanes);
        wire.close();
        return answers;
      }),
    );
    return { wires: await Promise.all(wires) };
  },

  /** The same, and one lane is steered as soon as it says something. */
  async steer({ after, hows }) {
    const wires = hows.flatMap((how) =>
      after.map(async (number) => {
        const wire = new Tickwire(`${url}?name=${how}${number}&after=${number}&how=${how}`, { retryMs: 5 });
        const first = wire.respond({ ...HELLO, max_output_tokens: 60 });
        await firstText(first);
        const second = first.steer("more");
        const third = second.steer("and more");
        const late = third.steer("once more");
        late.stop();
        const answers = await Promise.all([first, second, third, late].map(read));
        wire.close();
        return answers;
      }),
    );
    return { wires: await Promise.all(wires) };
  },

  async stop() {
    const wire = new Tickwire(url);
    const long = wire.respond({ ...HELLO, max_output_tokens: 5000 });
    await firstText(long);
    long.stop();
    const stopped = await read(long);
    const early = wire.respond({ ...HELLO, max_output_tokens: 5000 });
    early.stop();
    const answers = [stopped, await read(early), await read(wire.respond(HELLO))];
    const left = wire.respond({ ...HELLO, max_output_tokens: 5000 });
    await firstText(left);
    wire.close();
    return { answers: [...answers, await read(left)] };
  },

  async attach() {
    const [one, two] = [new Tickwire(url), new Tickwire(url)];
    const answer = one.respond({ ...HELLO, max_output_tokens: 200 });
    await firstText(answer);
    const { responseId, sequence, text } = answer;
    const others = [two.resume(responseId), two.resume(responseId, { after: sequence })];
    const [whole, beginning, rest] = await Promise.all([answer, ...others].map(read));
    const again = await read(two.resume(responseId, { after: whole.sequence - 4 }));
    const missing = await read(two.resume("resp_never"));
    one.close();
    two.close();
    return { whole, beginning, rest: text + rest.joined, again, missing };
  },

  async extras() {
    const wire = new Tickwire(url);
    const warm = await read(wire.warmUp({ input: "hello" }));
    const built = await read(wire.respond({ ...HELLO, input: "more", previous_response_id: warm.responseId }));
    const trip = await wire.ping();
    const long = wire.respond({ ...HELLO, max_output_tokens: 5000 });
    const tooEarly = await long.stats();
    await firstText(long);
    const stats = await long.stats();
    long.stop();
    await long.ended;
    const tooLate = await long.stats();
    const next = long.steer("more");
    await firstText(next);
    next.stop();
    const ended = await read(next);
    wire.close();
    return { warm, built, trip, tooEarly, stats, tooLate, long: long.text, ended, afterwards: await wire.ping() };
  },

  async token({ keys }) {
    const results = keys.map(async (token) => {
      const wire = new Tickwire(url, { token });
      const answer = await read(wire.respond(HELLO));
      const { state, code } = wire.connection;
      wire.close();
      return { answer, state, code };
    });
    return { results: await Promise.all(results) };
  },

  /** From no key to a wrong one to the right one, and what was asked with the right one goes on over another link. */
  async keys({ right }) {
    const wire = new Tickwire(url);
    const outcomes = [];
    for (const token of [null, "wrong", right]) {
      wire.authenticate(token);
      const { status, error, text } = await read(wire.respond(HELLO));
      outcomes.push({ status, text, code: error?.code });
    }
    const long = wire.respond({ ...HELLO, max_output_tokens: 200 });
    await firstText(long);
    wire.authenticate(right);
    const whole = await read(long);
    wire.close();
    return { outcomes, whole };
  },

  /** The `WebSocket` class of the `ws` package, as older versions of Node need it. */
  async ws() {
    const wire = new Tickwire(`${url}?name=ws&after=6&how=reset`, { WebSocket: WS, retryMs: 5 });
    const answer = await read(wire.respond(HELLO));
    wire.close();
    return { answer };
  },

  /** A server that numbers its events as it is told. */
  async numbers({ runs }) {
    const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
    await once(server, "listening");
    const asked = [];
    server.on("connection", (socket) => {
      socket.on("message", (data) => {
        const { type, input, stream_id } = JSON.parse(data);
        asked.push(type);
        if (type !== "response.create") return;
        for (const number of runs[input]) {
          const delta = { type: "response.output_text.delta", delta: `${number}` };
          const response = { id: input, status: number ? "completed" : "in_progress" };
          const state = { type: number ? "response.completed" : "response.created", response };
          const event = number === 0 || number === 9 ? state : delta;
          socket.send(JSON.stringify({ ...event, sequence_number: number, stream_id }));
        }
      });
    });
    const wire = new Tickwire(`ws://127.0.0.1:${server.address().port}`);
    const answers = await Promise.all(runs.map((_, input) => read(wire.respond({ input: `${input}` }))));
    return { answers, asked };
  },

  /** A server that closes with some code whatever it is asked. */
  async closes({ codes }) {
    const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
    const seen = {};
    server.on("connection", (socket, { url: path }) => {
      const code = Number(path.slice(1));
      seen[code] = (seen[code] ?? 0) + 1;
      socket.on("message", () => socket.close(code));
    });
    await once(server, "listening");
    const { port } = server.address();
    const ends = codes.map(async (code) => {
      const wire = new Tickwire(`ws://127.0.0.1:${port}/${code}`, { retryMs: 1 });
      const answer = await read(wire.respond(HELLO));
      const { state } = wire.connection;
      wire.close();
      return [code, { status: answer.status, error: answer.error?.code, state, tries: seen[code], final: isFinalClose(code) }];
    });
    const result = Object.fromEntries(await Promise.all(ends));
    server.close();
    return result;
  },
};

const result = JSON.stringify(await scenarios[scenario](JSON.parse(options)));
// A link that has fallen silent never says that it is closed, and Node would wait for it.
process.stdout.write(result, () => process.exit());
