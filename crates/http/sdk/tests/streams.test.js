/** Streams against scripted answers. */

import assert from "node:assert/strict";
import test from "node:test";

import "./fake_server.js";
import { Switchboard } from "../switchboard.js";

const chunk = (seq, data) => `id: ${seq}\nevent: chunk\ndata: ${JSON.stringify({ seq, data })}\n\n`;
const END = 'id: 9.end\nevent: end\ndata: {"state":"completed"}\n\n';

/** Answers each request with the next of these: a status, or pieces, which may end in an error. */
function script(t, answers) {
  const requests = [];
  t.mock.method(globalThis, "fetch", async (url, { method, headers, signal }) => {
    requests.push({ url, method, after: headers["last-event-id"] });
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    if (typeof answer === "number") return Response.json({ code: "code", detail: "detail" }, { status: answer });
    return new Response(body(answer, signal));
  });
  return requests;
}

function body(pieces, signal) {
  return new ReadableStream({
    async start(controller) {
      signal?.addEventListener("abort", () => controller.error(signal.reason));
      for (const piece of pieces) {
        if (piece === HANGS) return;
        if (piece instanceof Error) return controller.error(piece);
        controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
        // The reader takes each piece before the next one comes.
        await new Promise(setImmediate);
      }
      controller.close();
    },
  });
}

/** Stands at the end of an answer that goes on without bringing anything. */
const HANGS = Symbol("hangs");

const client = (url = "http://one") => new Switchboard({ url, token: "token" });

async function read(stream) {
  const chunks = [];
  for await (const { data } of stream) chunks.push(data);
  return chunks;
}

test("a stream is read to its end over connections that break", async (t) => {
  const bytes = new TextEncoder().encode(chunk(3, "\u{1f980}"));
  const requests = script(t, [
    [chunk(1, "a"), chunk(2, "b"), new Error("reset")],
    new TypeError("no network"),
    503,
    [": comment\n\n", bytes.slice(0, -5), bytes.slice(-5), 'event: goaway\ndata: {}\n\n'],
    [chunk(4, "d"), END],
  ]);
  const stream = client(["http://one", "http://two"]).readStream("s1");
  assert.equal(stream.end, null);
  assert.deepEqual(await read(stream), ["a", "b", "\u{1f980}", "d"]);
  assert.deepEqual([stream.end, stream.seq], [{ state: "completed" }, 4]);
  assert.deepEqual(requests.map(({ after }) => after), ["0", "2", "2", "2", "3"]);
  assert.equal(requests[0].url, "http://one/api/v1/streams/s1/chunks");
  assert.deepEqual([...new Set(requests.map(({ url }) => new URL(url).host))], ["one", "two"]);
});

test("reading goes on after a chunk", async (t) => {
  const requests = script(t, [[END]]);
  assert.deepEqual(await read(client().readStream("s1", { after: 7 })), []);
  assert.equal(requests[0].after, "7");
});

test("a refusal ends the loop with an error, not as an end", async (t) => {
  script(t, [404]);
  const stream = client().readStream("s1");
  await assert.rejects(read(stream), { code: "code", message: "detail" });
  assert.equal(stream.end, null);
});

test("a reader is aborted by its signal, and by leaving the loop", async (t) => {
  const requests = script(t, [[chunk(1, "a"), HANGS], [chunk(1, "a"), HANGS]]);
  const stop = new AbortController();
  const reading = async () => {
    for await (const { data } of client().readStream("s1", { signal: stop.signal })) {
      assert.equal(data, "a");
      setTimeout(() => stop.abort(), 1);
    }
  };
  await assert.rejects(reading(), { name: "AbortError" });
  for await (const { seq } of client().readStream("s1")) {
    assert.equal(seq, 1);
    break;
  }
  assert.equal(requests.length, 2);
});

test("the producer of a stream is asked to stop, at whichever address answers", async (t) => {
  const requests = script(t, [new TypeError("no network"), []]);
  await client(["http://one", "http://two"]).stopStream("s1");
  assert.deepEqual(requests.map(({ url, method }) => [url, method]), [
    ["http://one/api/v1/streams/s1/stop", "POST"],
    ["http://two/api/v1/streams/s1/stop", "POST"],
  ]);
});
