/**
 * The Switchboard client for browsers: a socket that outlives its connections, and readers of streams.
 *
 * The events of a joined room are handed over once, in order and without holes, from one connection to the next; what
 * cannot be continued is said. One file without dependencies, served by every server at /sdk/switchboard.js, with its
 * types beside it. It knows the wire and nothing of applications. Classes that the types do not show are for tests.
 */

const PROTOCOL = "switchboard.v1";

/** The close code that stands for a connection that was lost without one. */
export const LOST = 1006;
/** The close code of connections that the client itself gives up for another. */
const MOVED = 4202;

/** How long a connection may take until the server says hello. */
const CONNECT_MS = 10_000;
/** The ceiling of the first delay between connections that fail; it doubles up to the longest. */
const FIRST_DELAY_MS = 200;
const LONGEST_DELAY_MS = 10_000;
/** How long a publish is repeated over lost connections: well within the ten minutes a message id is remembered. */
const REPEAT_MS = 5 * 60_000;
/** The most operations that wait for an answer or a connection. */
const MOST_WAITING = 1_000;
/** How long a stream may be silent; the server writes a comment every 15 s. */
const STREAM_SILENCE_MS = 40_000;

/** Why something that was asked for did not happen. */
export class SwitchboardError extends Error {
  name = "SwitchboardError";

  constructor({ code, message, retryable = false, retry_after_ms = 0 }) {
    super(message);
    this.code = code;
    this.retryable = retryable;
    this.retryAfterMs = retry_after_ms;
  }

  /** Reads the problem document of a refused request. */
  static async of(response) {
    const problem = await response.json().catch(() => ({}));
    return new SwitchboardError({
      code: problem.code ?? "internal",
      message: problem.detail ?? `the server answered ${response.status}`,
      retryable: response.status === 408 || response.status === 429 || response.status >= 500,
      retry_after_ms: 1_000 * (Number(response.headers.get("retry-after")) || 0),
    });
  }
}

const UNKNOWN = "the connection was lost before the answer; whether it took effect is unknown";

const lost = (message) => new SwitchboardError({ code: "lost", message, retryable: true });
const closed = (message) => new SwitchboardError({ code: "closed", message });

/** Reads the class of a close code: "stop", "resume" at once, or "back-off". Unknown codes mean a lost connection. */
export function afterClose(code) {
  if ((code >= 4000 && code < 4100) || [1002, 1003, 1007, 1009].includes(code)) return "stop";
  return code >= 4200 && code < 4300 ? "resume" : "back-off";
}

/** How long to wait before the next connection: exponential back-off with full jitter. */
export class Pacing {
  #failures = 0;

  /** Takes note of a connection that works. */
  settle() {
    this.#failures = 0;
  }

  delay(after, chance = Math.random()) {
    const isFirst = this.#failures === 0;
    const ceiling = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures);
    this.#failures += 1;
    return after === "resume" && isFirst ? 0 : chance * ceiling;
  }
}

/** What of one room was handed over, and so what the next connection must ask for. */
export class Track {
  /** Everything up to here was handed over, or lies before the join. */
  position = null;
  isJoining = false;
  #since;
  #isResuming = false;
  #wasJoined = false;
  /** The last offset of the running replay. */
  #replayEnd = 0;

  constructor(since = "latest") {
    this.#since = since;
  }

  /** Returns where the join that is about to be sent starts. */
  join() {
    this.isJoining = true;
    const since = this.position ?? this.#since;
    this.#isResuming = typeof since === "object";
    return since;
  }

  /** Takes the answer to the join; tells whether nothing is missing. */
  joined({ epoch, offset, recovered, replayed }) {
    const isWhole = this.#isResuming ? recovered : !this.#wasJoined;
    this.position = { epoch, offset };
    this.#replayEnd = offset + replayed;
    this.#wasJoined = true;
    this.isJoining = false;
    return isWhole;
  }

  /** Takes the server's word that the position is lost. */
  lose() {
    this.position = null;
    this.#since = "latest";
    this.#wasJoined = true;
  }

  /** Judges an event, "deliver", "drop" or "gap", and remembers one that is delivered. */
  judge({ epoch, offset }) {
    if (offset === undefined) return "deliver";
    // Whatever comes before the answer lies before the join, or the replay brings it again.
    if (this.isJoining) return "drop";
    const at = this.position;
    // Before its first event the history of a room may have no name yet.
    const isSame = epoch === at.epoch || (at.offset === 0 && offset === 1);
    if (isSame && offset <= at.offset) return "drop";
    if (isSame && offset === at.offset + 1) {
      this.position = { epoch, offset };
      return "deliver";
    }
    // It was queued before the join was answered, and its turn comes.
    return isSame && offset <= this.#replayEnd ? "drop" : "gap";
  }
}

/** Reads server-sent events from text that arrives in any pieces. */
export class SseParser {
  #rest = "";
  #message = { event: "message", id: undefined, data: [] };

  /** Takes a piece and returns the messages that it completes. */
  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line.replace(/\r$/, ""))).filter(Boolean);
  }

  #line(line) {
    if (line === "") {
      const { event, id, data } = this.#message;
      this.#message = { event: "message", id: undefined, data: [] };
      return data.length > 0 && { event, id, data: data.join("\n") };
    }
    // A line without a colon is a field without a value; a comment has a field without a name.
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "data") this.#message.data.push(value);
    else if (field === "event" || field === "id") this.#message[field] = value;
    return null;
  }
}

/** One WebSocket until its end. */
class Link {
  #socket;
  #watch;
  #silentBeats = 0;
  #resolve;

  constructor(url, ticket, take) {
    /** Settles with how it ended. */
    this.ended = new Promise((resolve) => (this.#resolve = resolve));
    this.#socket = new WebSocket(`${url.replace(/^http/, "ws")}/ws`, [PROTOCOL, `ticket.${ticket}`]);
    this.#socket.onclose = ({ code, reason }) => this.end(code, reason || "the connection ended");
    this.#socket.onmessage = ({ data }) => {
      this.#silentBeats = 0;
      take(JSON.parse(data));
    };
    this.#watch = setTimeout(() => this.end(LOST, "the server does not answer"), CONNECT_MS);
  }

  /** Ends the connection when the server, which pings, is silent for two to three of its beats. */
  watch(heartbeatMs) {
    clearTimeout(this.#watch);
    this.#watch = setInterval(() => {
      this.#silentBeats += 1;
      if (this.#silentBeats > 2) this.end(LOST, "the server is silent");
    }, heartbeatMs);
  }

  send(text) {
    this.#socket.send(text);
  }

  end(code, reason) {
    clearInterval(this.#watch);
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close(1000);
    this.#resolve({ code, reason });
  }
}

/** A socket that outlives its connections. */
export class Switchboard {
  #urls;
  #options;
  #token;
  #handlers = new Map();
  #callHandlers = new Map();
  #rooms = new Map();
  /** Operations that are not answered, by id, in the order in which they were asked for. */
  #waiting = new Map();
  /** The calls that are being answered here. */
  #answering = new Set();
  #pacing = new Pacing();
  #lastId = 0;
  #link = null;
  /** What the server said at the start of the current connection. */
  #hello = null;
  #isAnnounced = false;
  #isEnded = false;
  #connected = null;
  #nap = null;

  constructor(options = {}) {
    const { url = new URL("..", import.meta.url).href } = options;
    this.#urls = [url].flat().map((each) => each.replace(/\/+$/, ""));
    this.#options = options;
    this.#token = options.token;
  }

  /** Whose socket it is, once connected. */
  get userId() {
    return this.#hello?.user_id;
  }

  on(name, handler) {
    const handlers = this.#handlers.get(name) ?? new Set();
    this.#handlers.set(name, handlers.add(handler));
    return () => handlers.delete(handler);
  }

  onCall(event, handler) {
    this.#callHandlers.set(event, handler);
    return () => this.#callHandlers.get(event) === handler && this.#callHandlers.delete(event);
  }

  connect() {
    if (this.#isEnded) return heardOf(Promise.reject(closed("the client has ended")));
    if (!this.#connected) {
      this.#connected = deferred();
      heardOf(this.#connected.promise);
      globalThis.addEventListener?.("online", this.#hurry);
      this.#run().catch((error) => this.#stop({ code: LOST, reason: error.message, error }));
    }
    return this.#connected.promise;
  }

  close() {
    this.#end(closed("the client was closed"));
  }

  reconnect() {
    this.#link?.end(MOVED, "given up for another");
  }

  async join(name, { since, presence, onEvent, onDesync } = {}) {
    if (this.#isEnded) throw closed("the client has ended");
    if (this.#rooms.get(name)?.isOwned) {
      throw new SwitchboardError({ code: "already_joined", message: `${name} is joined already` });
    }
    const room = { name, presence, onEvent, onDesync, isOwned: true, track: new Track(since), answer: deferred() };
    this.#rooms.set(name, room);
    if (this.#hello) this.#sendJoin(room);
    return room.answer.promise;
  }

  leave(name) {
    const room = this.#rooms.get(name);
    if (!room) return false;
    this.#rooms.delete(name);
    room.answer?.reject(new SwitchboardError({ code: "not_joined", message: `${name} was left` }));
    if (this.#hello) {
      this.#send({ op: "leave", room: name });
      this.#announce();
    }
    return true;
  }

  position(name) {
    return this.#rooms.get(name)?.track.position ?? null;
  }

  publish(room, event, payload, { msgId = randomId(), ephemeral = false } = {}) {
    const op = { op: "publish", room, event, payload: payload ?? null, msg_id: msgId };
    // What is not stored is not recognised as a repetition either.
    return ephemeral ? this.#ask({ ...op, ephemeral }) : this.#ask(op, { repeats: true });
  }

  history(room, { after = 0, limit } = {}) {
    return this.#ask({ op: "history", room, after, limit }, { repeats: true });
  }

  presence(room) {
    return this.#ask({ op: "presence", room }, { repeats: true });
  }

  async auth(token) {
    if (typeof this.#token !== "function") this.#token = token;
    if (!this.#hello) return;
    try {
      await this.#ask({ op: "auth", token });
    } catch (error) {
      // The next connection has a ticket of its own.
      if (error.code !== "lost") throw error;
    }
  }

  readStream(id, options = {}) {
    return new StreamReader(id, options, (path, init, turn) => this.#request(path, init, turn));
  }

  async stopStream(id) {
    await this.#request(`/api/v1/streams/${encodeURIComponent(id)}/stop`, { method: "POST" });
  }

  // --- Connections ---

  async #run() {
    for (let turn = 0; ; turn += 1) {
      const end = await this.#serve(this.#urls[turn % this.#urls.length]);
      if (this.#isEnded) return;
      this.#disconnect();
      const after = end.error?.retryable === false ? "stop" : afterClose(end.code);
      if (after === "stop") return this.#stop(end);
      const delayMs = Math.max(this.#pacing.delay(after), end.error?.retryAfterMs ?? 0);
      this.#emit("disconnected", { ...end, delayMs });
      this.#nap = new AbortController();
      await pause(delayMs, this.#nap.signal);
      if (this.#isEnded) return;
    }
  }

  /** Serves one connection and returns how it ended. */
  async #serve(url) {
    let ticket;
    try {
      ticket = await (this.#options.ticket?.(url) ?? this.#mintTicket(url));
    } catch (error) {
      return { code: LOST, reason: `no ticket: ${error.message}`, error };
    }
    if (this.#isEnded) return {};
    this.#link = new Link(url, ticket, (frame) => this.#take(frame));
    return this.#link.ended;
  }

  async #mintTicket(url) {
    const init = {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ origin: globalThis.location?.origin }),
    };
    const response = await this.#fetch(url, "/api/v1/ws/ticket", init);
    return (await response.json()).ticket;
  }

  #hurry = () => this.#nap?.abort();

  /** Forgets the connection. What must not be repeated fails, the rest waits for the next connection. */
  #disconnect() {
    this.#link = this.#hello = null;
    this.#isAnnounced = false;
    for (const [id, waiting] of this.#waiting) {
      if (waiting.sentAt !== undefined && !waiting.repeats) this.#giveUp(id, lost(UNKNOWN));
    }
  }

  #stop(end) {
    this.#end(end.error ?? closed(`the server closed the socket: ${end.code} ${end.reason}`));
    this.#emit("stopped", end);
  }

  #end(error) {
    this.#isEnded = true;
    globalThis.removeEventListener?.("online", this.#hurry);
    this.#link?.end(1000, "closed here");
    this.#link = this.#hello = null;
    this.#hurry();
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    for (const room of this.#rooms.values()) room.answer?.reject(error);
    this.#connected?.reject(error);
    this.#waiting.clear();
    this.#rooms.clear();
  }

  // --- Operations ---

  async #ask(op, { repeats = false } = {}) {
    if (this.#isEnded) throw closed("the client has ended");
    if (this.#waiting.size >= MOST_WAITING) {
      const message = `${MOST_WAITING} operations wait already`;
      throw new SwitchboardError({ code: "rate_limited", message, retryable: true });
    }
    const id = (this.#lastId += 1);
    const waiting = { ...deferred(), text: JSON.stringify({ id, ...op }), repeats, sentAt: undefined };
    this.#waiting.set(id, waiting);
    if (this.#hello) this.#transmit(id, waiting);
    return waiting.promise;
  }

  #transmit(id, waiting) {
    waiting.sentAt ??= Date.now();
    if (Date.now() - waiting.sentAt > REPEAT_MS) return this.#giveUp(id, lost(UNKNOWN));
    // The server would close the socket on it, again and again.
    if (new TextEncoder().encode(waiting.text).length > this.#hello.limits.message_bytes) {
      return this.#giveUp(id, new SwitchboardError({ code: "payload_too_large", message: "the message is too large" }));
    }
    this.#link.send(waiting.text);
  }

  #giveUp(id, error) {
    this.#waiting.get(id).reject(error);
    this.#waiting.delete(id);
  }

  /** Sends an operation whose answer is not waited for, and returns its id. */
  #send(op) {
    const id = (this.#lastId += 1);
    this.#link.send(JSON.stringify({ id, ...op }));
    return id;
  }

  #sendJoin(room) {
    const { name, presence, track } = room;
    room.joinId = this.#send({ op: "join", room: name, since: track.join(), presence });
  }

  /** Joins a room anew, whether or not the server still counts it as joined. */
  #rejoin(room) {
    this.#send({ op: "leave", room: room.name });
    this.#sendJoin(room);
  }

  // --- Frames ---

  #take(frame) {
    if ("re" in frame) return this.#takeReply(frame);
    switch (frame.op) {
      case undefined:
        return this.#takeEvent(frame);
      case "hello":
        return this.#takeHello(frame);
      case "ping":
        return this.#link.send('{"id":0,"op":"ping"}');
      case "call":
        return void this.#answerCall(frame);
      case "desync":
        return this.#takeDesync(frame);
      case "goaway":
        return this.#takeGoaway(frame);
      case "lag":
        return this.#emit("lag", frame);
    }
  }

  #takeHello(hello) {
    this.#hello = hello;
    this.#link.watch(hello.heartbeat_ms);
    // The server joins the room of the user by itself, but only an explicit join tells the position and resumes.
    const own = `user:${hello.user_id}`;
    if (!this.#rooms.has(own)) this.#rooms.set(own, { name: own, track: new Track() });
    for (const room of this.#rooms.values()) this.#sendJoin(room);
    for (const [id, waiting] of this.#waiting) this.#transmit(id, waiting);
    for (const offer of hello.pending_calls) void this.#answerCall(offer);
  }

  #takeEvent(event) {
    const room = this.#rooms.get(event.room);
    if (!room) return;
    const verdict = room.track.judge(event);
    if (verdict === "gap") this.#rejoin(room);
    if (verdict !== "deliver") return;
    call(room.onEvent, event);
    this.#emit("event", event);
  }

  #takeReply({ re, ok, error }) {
    const waiting = this.#waiting.get(re);
    if (waiting) {
      this.#waiting.delete(re);
      return error ? waiting.reject(new SwitchboardError(error)) : waiting.resolve(ok);
    }
    for (const room of this.#rooms.values()) {
      if (room.joinId === re) return error ? this.#joinFailed(room, error) : this.#joined(room, ok);
    }
  }

  #joined(room, joined) {
    const isWhole = room.track.joined(joined);
    if (!isWhole) {
      const { epoch, offset } = joined;
      const reason = room.lossReason ?? "the position could not be continued";
      const desync = { room: room.name, reason, position: { epoch, offset } };
      call(room.onDesync, desync);
      this.#emit("desync", desync);
    }
    room.lossReason = undefined;
    room.answer?.resolve(joined);
    room.answer = undefined;
    this.#announce();
  }

  #joinFailed(room, error) {
    // A room that was joined before is worth another connection.
    if (!room.answer && error.retryable) return this.#link.end(LOST, `cannot join ${room.name}: ${error.message}`);
    this.#rooms.delete(room.name);
    if (room.answer) room.answer.reject(new SwitchboardError(error));
    else this.#emit("refused", { room: room.name, error: new SwitchboardError(error) });
    this.#announce();
  }

  /** Announces the connection once every room is joined. */
  #announce() {
    if (this.#isAnnounced || !this.#hello || [...this.#rooms.values()].some((room) => room.track.isJoining)) return;
    this.#isAnnounced = true;
    this.#pacing.settle();
    this.#connected.resolve(this.#hello);
    this.#emit("connected", this.#hello);
  }

  /** The room is said to be lost when its new position is known, so that whoever reads it anew misses nothing. */
  #takeDesync({ room: name, reason }) {
    const room = this.#rooms.get(name);
    if (!room) return;
    room.track.lose();
    room.lossReason = reason;
    this.#rejoin(room);
  }

  #takeGoaway(notice) {
    this.#emit("goaway", notice);
    const { reconnect_min_ms: earliest, reconnect_max_ms: latest } = notice;
    const link = this.#link;
    setTimeout(() => link.end(MOVED, "moved away"), earliest + Math.random() * (latest - earliest));
  }

  // --- Calls ---

  async #answerCall({ call_id, event, payload, deadline_ms }) {
    const handler = this.#callHandlers.get(event);
    if (!handler || this.#answering.has(call_id)) return;
    this.#answering.add(call_id);
    try {
      const { token } = await this.#ask({ op: "claim", call_id });
      const reply = (answer) => this.#ask({ op: "reply", call_id, token, ...answer }, { repeats: true });
      const context = { callId: call_id, signal: AbortSignal.timeout(deadline_ms) };
      const answer = await execute(handler, payload, context);
      await reply(answer).catch((error) => {
        if (error.code !== "payload_too_large") throw error;
        return reply(failed(error));
      });
    } catch (error) {
      // Another connection has the call, or it has ended, or it will be offered again.
      if (!["call_conflict", "not_found", "lost", "closed"].includes(error.code)) reportError(error);
    } finally {
      this.#answering.delete(call_id);
    }
  }

  // --- Requests ---

  /** Asks one address, and the next ones while none answers. */
  async #request(path, init, turn = 0) {
    for (let tried = 1; ; tried += 1) {
      try {
        return await this.#fetch(this.#urls[(turn + tried - 1) % this.#urls.length], path, init);
      } catch (error) {
        if (!error.retryable || tried === this.#urls.length) throw error;
      }
    }
  }

  /** Asks with the access token, and with a newer one when it is refused. */
  async #fetch(url, path, init) {
    if (this.#token === undefined) throw closed("this needs the option token");
    const isFixed = typeof this.#token !== "function";
    for (const isRefused of isFixed ? [true] : [false, true]) {
      const token = isFixed ? this.#token : await attempt(() => this.#token({ isRefused }));
      const headers = { ...init.headers, authorization: `Bearer ${token}` };
      const response = await attempt(() => fetch(url + path, { ...init, headers }));
      if (response.ok) return response;
      if (response.status !== 401 || isRefused) throw await SwitchboardError.of(response);
    }
  }

  #emit(name, detail) {
    for (const handler of [...(this.#handlers.get(name) ?? [])]) call(handler, detail);
  }
}

/** Reads a stream to its end, over as many connections as it takes. */
class StreamReader {
  /** How the stream ended; `null` before. */
  end = null;
  /** The number of the last chunk that was handed over. */
  seq;
  #id;
  #signal;
  #request;

  constructor(id, { after = 0, signal }, request) {
    this.seq = after;
    this.#id = id;
    this.#signal = signal;
    this.#request = request;
  }

  async *[Symbol.asyncIterator]() {
    const pacing = new Pacing();
    for (let turn = 0; !this.end; turn += 1) {
      const before = this.seq;
      try {
        yield* this.#connection(turn);
        if (this.end) return;
      } catch (error) {
        this.#signal?.throwIfAborted();
        if (!error.retryable) throw error;
        await pause(error.retryAfterMs, this.#signal);
      }
      if (this.seq > before) pacing.settle();
      await pause(pacing.delay("back-off"), this.#signal);
    }
  }

  /** Hands over what one connection brings. */
  async *#connection(turn) {
    const abort = new AbortController();
    const forward = () => abort.abort();
    this.#signal?.throwIfAborted();
    this.#signal?.addEventListener("abort", forward);
    try {
      const path = `/api/v1/streams/${encodeURIComponent(this.#id)}/chunks`;
      const headers = { accept: "text/event-stream", "last-event-id": String(this.seq) };
      const response = await unlessSilent(abort, this.#request(path, { headers, signal: abort.signal }, turn));
      for await (const { event, data } of messages(response, abort)) {
        if (event === "end") {
          this.end = JSON.parse(data);
          return;
        }
        if (event !== "chunk") continue;
        const chunk = JSON.parse(data);
        this.seq = chunk.seq;
        yield chunk;
      }
    } finally {
      this.#signal?.removeEventListener("abort", forward);
      abort.abort();
    }
  }
}

/** Reads the messages of an answer until it ends; silence ends it as well. */
async function* messages(response, abort) {
  const parser = new SseParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await unlessSilent(abort, attempt(() => reader.read()));
    if (done) return;
    yield* parser.push(value);
  }
}

/** Gives a connection up that brings nothing for too long. */
async function unlessSilent(abort, promise) {
  const timer = setTimeout(() => abort.abort(), STREAM_SILENCE_MS);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}

// --- Small things ---

function deferred() {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
}

/** Takes a failure for handled: whoever does not wait for it is told of it in another way. */
function heardOf(promise) {
  promise.catch(() => {});
  return promise;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const hurry = () => {
      clearTimeout(timer);
      resolve();
    };
    signal?.addEventListener("abort", hurry, { once: true });
  });
}

/** Tries what fails with the network; the application may say of its own failures that another try is in vain. */
async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    throw error.retryable === undefined ? lost(error.message) : error;
  }
}

/** Makes a message id; `crypto.randomUUID` exists in secure contexts only. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Calls what the application gave; its faults are its own. */
function call(handler, detail) {
  try {
    handler?.(detail);
  } catch (error) {
    reportError(error);
  }
}

async function execute(handler, payload, context) {
  try {
    return { ok: true, payload: (await handler(payload, context)) ?? null };
  } catch (error) {
    return failed(error);
  }
}

const failed = (error) => ({ ok: false, error: { message: String(error?.message ?? error) } });
