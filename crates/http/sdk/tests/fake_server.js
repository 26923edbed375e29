/** A server in the process of the test: it scripts frames to the client and sees what the client sends. */

import { webcrypto } from "node:crypto";

// The global of Node 18 is behind a flag.
globalThis.crypto ??= webcrypto;

/** Every socket that was opened, in order. */
export const sockets = [];
const arrivals = [];

class FakeSocket {
  readyState = 0;
  sent = [];
  #readers = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    sockets.push(this);
    arrivals.shift()?.(this);
  }

  send(text) {
    const op = JSON.parse(text);
    const reader = this.#readers.findIndex(({ name }) => name === op.op);
    if (reader >= 0) this.#readers.splice(reader, 1)[0].resolve(op);
    else this.sent.push(op);
  }

  close() {
    this.isClosed = true;
  }

  /** Waits for the next operation of this name. */
  next(name) {
    const at = this.sent.findIndex(({ op }) => op === name);
    if (at >= 0) return Promise.resolve(this.sent.splice(at, 1)[0]);
    return new Promise((resolve) => this.#readers.push({ name, resolve }));
  }

  /** Sends a frame to the client. */
  say(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }

  /** Says hello and answers the join of the room of the user. */
  async hello(more = {}) {
    this.say({
      op: "hello",
      conn_id: "c",
      user_id: "ann",
      instance: "i",
      heartbeat_ms: 20_000,
      limits: { message_bytes: 65_536 },
      pending_calls: [],
      ...more,
    });
    const join = await this.next("join");
    this.joined(join, { offset: 0 });
  }

  /** Answers a join. */
  joined({ id }, { epoch = "e", offset, recovered = true, replayed = 0 }) {
    this.say({ re: id, ok: { epoch, offset, recovered, replayed } });
  }

  /** Sends stored events. */
  events(room, offsets, epoch = "e") {
    for (const offset of offsets) {
      this.say({ event: "tick", room, payload: offset, ts: 0, msg_id: `m${offset}`, offset, epoch });
    }
  }

  /** Closes the connection from the side of the server. */
  drop(code = 1006, reason = "") {
    this.onclose?.({ code, reason });
  }
}

globalThis.WebSocket = FakeSocket;
/** What browsers report as uncaught. */
export const reported = [];
globalThis.reportError = (error) => reported.push(error);
// No delay between connections.
Math.random = () => 0;

/** Waits for the next socket that the client opens. */
export function nextSocket() {
  return new Promise((resolve) => arrivals.push(resolve));
}

/** Collects what a client tells of. */
export function collect(client, name) {
  const notices = [];
  client.on(name, (notice) => notices.push(notice));
  return notices;
}

/** Waits for the next notice of a client. */
export function once(client, name) {
  return new Promise((resolve) => {
    const stop = client.on(name, (notice) => {
      stop();
      resolve(notice);
    });
  });
}
