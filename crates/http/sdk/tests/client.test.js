/** The client against a scripted server. */

import assert from "node:assert/strict";
import test from "node:test";

import { collect, nextSocket, once, reported } from "./fake_server.js";
import { Switchboard } from "../switchboard.js";

/** Makes a client with tickets of its own, and connects it. */
async function connected(t, options = {}) {
  const client = new Switchboard({ url: "https://host/base/", ticket: () => "sbt_x", ...options });
  t.after(() => client.close());
  const coming = nextSocket();
  const connecting = client.connect();
  const socket = await coming;
  await socket.hello(options.hello);
  await connecting;
  return { client, socket };
}

/** Lets a connection end, and returns the next socket. */
async function next(socket, code, reason) {
  const coming = nextSocket();
  socket.drop(code, reason);
  return coming;
}

async function joined(client, socket, options = {}) {
  const joining = client.join("lobby", options);
  socket.joined(await socket.next("join"), { offset: 5 });
  return joining;
}

test("it connects with a ticket and says who it is", async (t) => {
  const { client, socket } = await connected(t);
  assert.equal(socket.url, "wss://host/base/ws");
  assert.deepEqual(socket.protocols, ["switchboard.v1", "ticket.sbt_x"]);
  assert.equal(client.userId, "ann");
});

test("a room resumes on the next connection without doubles and holes", async (t) => {
  const { client, socket } = await connected(t);
  const events = [];
  const desyncs = collect(client, "desync");
  const answer = await joined(client, socket, { presence: true, onEvent: ({ offset }) => events.push(offset) });
  assert.equal(answer.offset, 5);
  socket.events("lobby", [6, 7, 7]);
  const again = await next(socket);
  await again.hello();
  const join = await again.next("join");
  assert.deepEqual([join.room, join.since, join.presence], ["lobby", { epoch: "e", offset: 7 }, true]);
  again.joined(join, { offset: 7, replayed: 1 });
  again.events("lobby", [8, 9]);
  assert.deepEqual(events, [6, 7, 8, 9]);
  assert.deepEqual(client.position("lobby"), { epoch: "e", offset: 9 });
  assert.deepEqual(desyncs, []);
});

test("a position that cannot be continued is said, once", async (t) => {
  const { client, socket } = await connected(t);
  const [desyncs, own] = [collect(client, "desync"), []];
  await joined(client, socket, { onDesync: (desync) => own.push(desync) });
  const again = await next(socket);
  await again.hello();
  again.joined(await again.next("join"), { epoch: "f", offset: 2, recovered: false });
  assert.deepEqual(desyncs.map(({ room, position }) => [room, position]), [["lobby", { epoch: "f", offset: 2 }]]);
  assert.deepEqual(own, desyncs);
});

test("a desync of the server is said with the position from where the room goes on", async (t) => {
  const { client, socket } = await connected(t);
  const events = collect(client, "event");
  await joined(client, socket);
  const told = once(client, "desync");
  socket.say({ op: "desync", room: "lobby", reason: "pruned" });
  assert.equal((await socket.next("leave")).room, "lobby");
  const join = await socket.next("join");
  assert.equal(join.since, "latest");
  socket.events("lobby", [40]);
  socket.joined(join, { offset: 40 });
  assert.deepEqual(await told, { room: "lobby", reason: "pruned", position: { epoch: "e", offset: 40 } });
  socket.events("lobby", [41]);
  assert.deepEqual(events.map(({ offset }) => offset), [41]);
});

test("a hole is read again instead of being skipped", async (t) => {
  const { client, socket } = await connected(t);
  const events = collect(client, "event");
  await joined(client, socket);
  socket.events("lobby", [6, 9]);
  const join = await socket.next("join");
  assert.deepEqual(join.since, { epoch: "e", offset: 6 });
  socket.joined(join, { offset: 6, replayed: 3 });
  socket.events("lobby", [7, 8, 9]);
  assert.deepEqual(events.map(({ offset }) => offset), [6, 7, 8, 9]);
});

test("a publish is repeated under its id when the connection is lost, an ephemeral one is not", async (t) => {
  const { client, socket } = await connected(t);
  const publishing = client.publish("lobby", "note", { n: 1 });
  const typing = assert.rejects(client.publish("lobby", "typing", null, { ephemeral: true }), { code: "lost" });
  const first = await socket.next("publish");
  assert.match(first.msg_id, /^[0-9a-f]{32}$/);
  const again = await next(socket);
  await typing;
  await again.hello();
  const second = await again.next("publish");
  assert.deepEqual(second, first);
  again.say({ re: second.id, ok: { msg_id: second.msg_id, duplicate: true } });
  assert.equal((await publishing).duplicate, true);
});

test("operations wait for a connection in their order", async (t) => {
  const client = new Switchboard({ url: "http://host", ticket: () => "sbt_x" });
  t.after(() => client.close());
  const [publishing, reading] = [client.publish("lobby", "note", 1, { msgId: "m" }), client.history("lobby", { limit: 2 })];
  const coming = nextSocket();
  client.connect();
  const socket = await coming;
  await socket.hello();
  assert.deepEqual(socket.sent.map(({ op }) => op), ["publish", "history"]);
  const [publish, history] = socket.sent;
  socket.say({ re: history.id, ok: { events: [] } });
  socket.say({ re: publish.id, error: { code: "forbidden", message: "no", retryable: false } });
  assert.deepEqual(await reading, { events: [] });
  await assert.rejects(publishing, { name: "SwitchboardError", code: "forbidden", retryable: false, message: "no" });
});

test("a message above the limit is refused here, since the server would close the socket", async (t) => {
  const { client, socket } = await connected(t, { hello: { limits: { message_bytes: 200 } } });
  await assert.rejects(client.publish("lobby", "note", "é".repeat(100)), { code: "payload_too_large" });
  assert.deepEqual(socket.sent, []);
});

test("a join that is refused is not tried again; one that was granted before is told of", async (t) => {
  const { client, socket } = await connected(t);
  const refusing = client.join("secret");
  const error = { code: "not_found", message: "no such room", retryable: false };
  socket.say({ re: (await socket.next("join")).id, error });
  await assert.rejects(refusing, { code: "not_found" });
  await joined(client, socket);
  await assert.rejects(client.join("lobby"), { code: "already_joined" });
  const refused = once(client, "refused");
  const again = await next(socket);
  await again.hello();
  again.say({ re: (await again.next("join")).id, error });
  assert.equal((await refused).room, "lobby");
  assert.equal(client.position("lobby"), null);
});

test("a room that was left hands over nothing more", async (t) => {
  const { client, socket } = await connected(t);
  const events = collect(client, "event");
  await joined(client, socket);
  assert.equal(client.leave("lobby"), true);
  assert.equal(client.leave("lobby"), false);
  assert.equal((await socket.next("leave")).room, "lobby");
  socket.events("lobby", [6]);
  const joining = client.join("lobby");
  socket.events("lobby", [7]);
  socket.joined(await socket.next("join"), { offset: 8 });
  await joining;
  socket.events("lobby", [8, 9]);
  assert.deepEqual(events.map(({ offset }) => offset), [9]);
});

test("pings are answered, lag is told of", async (t) => {
  const { client, socket } = await connected(t);
  const lags = collect(client, "lag");
  socket.say({ op: "ping" });
  assert.equal((await socket.next("ping")).id, 0);
  socket.say({ re: 0, ok: {} });
  socket.say({ op: "lag", room: "lobby", state: "dropping", dropped: 3 });
  assert.deepEqual(lags.map(({ dropped }) => dropped), [3]);
});

test("a server that falls silent is left", async (t) => {
  const { client } = await connected(t, { hello: { heartbeat_ms: 5 } });
  const { code, reason } = await once(client, "disconnected");
  assert.deepEqual([code, reason], [1006, "the server is silent"]);
});

test("a goaway moves the client in its slot, to the next address", async (t) => {
  const { client, socket } = await connected(t, { url: ["http://one", "http://two"] });
  const notices = collect(client, "goaway");
  const coming = nextSocket();
  socket.say({ op: "goaway", reason: "drain", reconnect_min_ms: 0, reconnect_max_ms: 10 });
  const again = await coming;
  assert.deepEqual([socket.isClosed, again.url, notices.length], [true, "ws://two/ws", 1]);
});

test("a code that asks for a person stops it, and everything that waits fails", async (t) => {
  const { client, socket } = await connected(t);
  const stopped = once(client, "stopped");
  const publishing = assert.rejects(client.publish("lobby", "note"), { code: "closed" });
  socket.drop(4011, "session revoked");
  assert.deepEqual(await stopped, { code: 4011, reason: "session revoked" });
  await publishing;
  await assert.rejects(client.join("lobby"), { code: "closed" });
  await assert.rejects(client.connect(), { code: "closed" });
});

test("a ticket that cannot be had is tried again, unless the application says that it is in vain", async (t) => {
  const answers = [new Error("no network"), "sbt_y"];
  const ticket = async () => {
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    return answer;
  };
  const client = new Switchboard({ url: "http://host", ticket });
  t.after(() => client.close());
  const disconnected = once(client, "disconnected");
  const coming = nextSocket();
  const connecting = client.connect();
  assert.match((await disconnected).reason, /no network/);
  const socket = await coming;
  assert.equal(socket.protocols[1], "ticket.sbt_y");
  await socket.hello();
  await connecting;
  answers.push(Object.assign(new Error("signed out"), { retryable: false }));
  const stopped = once(client, "stopped");
  socket.drop();
  assert.equal((await stopped).error.message, "signed out");
});

test("tickets are minted with the access token, and with a newer one when it is refused", async (t) => {
  const requests = [];
  t.mock.method(globalThis, "fetch", async (url, { headers, body }) => {
    requests.push([url, headers.authorization, body]);
    if (headers.authorization === "Bearer old") return Response.json({ code: "unauthorized" }, { status: 401 });
    return Response.json({ ticket: "sbt_z" }, { status: 201 });
  });
  const token = ({ isRefused }) => (isRefused ? "new" : "old");
  const { socket } = await connected(t, { ticket: undefined, token });
  const url = "https://host/base/api/v1/ws/ticket";
  assert.deepEqual(requests, [[url, "Bearer old", "{}"], [url, "Bearer new", "{}"]]);
  assert.equal(socket.protocols[1], "ticket.sbt_z");
});

test("a refused access token stops it", async (t) => {
  const refuse = async () => Response.json({ code: "unauthorized", detail: "expired" }, { status: 401 });
  t.mock.method(globalThis, "fetch", refuse);
  const client = new Switchboard({ url: "http://host", token: "old" });
  await assert.rejects(client.connect(), { code: "unauthorized", message: "expired" });
});

test("a token is renewed in place", async (t) => {
  const { client, socket } = await connected(t);
  const renewing = client.auth("new");
  const { id, token } = await socket.next("auth");
  assert.equal(token, "new");
  socket.say({ re: id, ok: {} });
  await renewing;
});

test("a call is executed after its claim and answered once", async (t) => {
  const { client, socket } = await connected(t);
  const executed = [];
  client.onCall("tool.call", async (payload, { callId, signal }) => {
    executed.push([payload, callId, signal.aborted]);
    return { sum: 3 };
  });
  const offer = { op: "call", call_id: "c1", event: "tool.call", payload: [1, 2], deadline_ms: 5_000 };
  socket.say(offer);
  socket.say(offer);
  socket.say({ ...offer, call_id: "c2", event: "other.call" });
  const claim = await socket.next("claim");
  assert.deepEqual([claim.call_id, executed], ["c1", []]);
  socket.say({ re: claim.id, ok: { token: "t1" } });
  const reply = await socket.next("reply");
  assert.deepEqual(executed, [[[1, 2], "c1", false]]);
  const { call_id, token, ok, payload } = reply;
  assert.deepEqual([call_id, token, ok, payload], ["c1", "t1", true, { sum: 3 }]);
  assert.deepEqual(socket.sent, [], "claimed once, and nobody else's");
  const again = await next(socket);
  await again.hello();
  const repeated = await again.next("reply");
  assert.deepEqual(repeated, reply, "until it is known to have arrived");
  again.say({ re: repeated.id, error: { code: "call_conflict", message: "answered", retryable: false } });
});

test("pending calls are handled like offers, and a failure is answered with its message", async (t) => {
  const { client, socket } = await connected(t);
  client.onCall("tool.call", () => {
    throw new Error("out of paper");
  });
  const again = await next(socket);
  const offer = { call_id: "c1", event: "tool.call", payload: null, deadline_ms: 5_000 };
  await again.hello({ pending_calls: [offer] });
  again.say({ re: (await again.next("claim")).id, ok: { token: "t1" } });
  const { ok, error } = await again.next("reply");
  assert.deepEqual([ok, error], [false, { message: "out of paper" }]);
});

test("a call that another client has is left to it", async (t) => {
  const { client, socket } = await connected(t);
  client.onCall("tool.call", () => assert.fail("it must not be executed"));
  socket.say({ op: "call", call_id: "c1", event: "tool.call", payload: null, deadline_ms: 5_000 });
  const claim = await socket.next("claim");
  socket.say({ re: claim.id, error: { code: "call_conflict", message: "claimed", retryable: false } });
});

test("a handler that fails takes nothing from the others", async (t) => {
  const { client, socket } = await connected(t);
  const events = [];
  client.on("event", ({ offset }) => events.push(offset));
  await joined(client, socket, {
    onEvent: () => {
      throw new Error("mine");
    },
  });
  socket.events("lobby", [6, 7]);
  assert.deepEqual(events, [6, 7]);
  assert.deepEqual(reported.splice(0).map(({ message }) => message), ["mine", "mine"]);
});
