/** The types of switchboard.js, the Switchboard client for browsers. */

/** The close code that stands for a connection that was lost without one. */
export const LOST: 1006;

/** Where an event stands in its room; positions of different epochs do not compare. */
export interface Position {
  epoch: string;
  offset: number;
}

/** An event of a room. */
export interface RoomEvent<Payload = unknown> {
  event: string;
  room: string;
  payload: Payload;
  /** When it was published, in milliseconds since 1970. */
  ts: number;
  msg_id: string;
  /** Absent for an ephemeral event, as is `epoch`. */
  offset?: number;
  epoch?: string;
}

/** What a join gave. */
export interface Joined extends Position {
  /** Whether everything after the given position follows. */
  recovered: boolean;
  /** How many events follow before live ones. */
  replayed: number;
}

/** Events of a room are missing: read anew what you show. The events after `position` follow. */
export interface Desync {
  room: string;
  reason: string;
  position: Position;
}

/** The client is slower than the room. */
export interface Lag {
  room: string;
  /** `dropping`: ephemeral events are dropped; `catching_up`: stored ones are read from the log; `live` again. */
  state: "dropping" | "catching_up" | "live";
  /** How many ephemeral events were dropped. */
  dropped: number;
}

/** The replica is being stopped; the client moves within the window, by itself. */
export interface Goaway {
  reason: string;
  reconnect_min_ms: number;
  reconnect_max_ms: number;
}

/** What the server says at the start of a connection. */
export interface Hello {
  conn_id: string;
  user_id: string;
  instance: string;
  heartbeat_ms: number;
  limits: { message_bytes: number; payload_bytes: number; rooms: number; ops_per_second: number };
}

/** How a connection, or the try to get one, ended. */
export interface End {
  /** The close code; {@link LOST} when there was none. */
  code: number;
  reason: string;
  /** Why there was no ticket. */
  error?: Error;
}

/** What {@link Switchboard.on} tells of. */
export interface Notices {
  /** A connection stands, and every room that was joined before is joined again. */
  connected: Hello;
  /** The connection ended, or could not be had; another is tried after `delayMs`. */
  disconnected: End & { delayMs: number };
  /** The end: the server wants a person or a new sign-in. Nothing follows. */
  stopped: End;
  /** An event of any joined room, or of the room `user:<id>` of the user, which is joined always. */
  event: RoomEvent;
  /** Events of a room are missing. */
  desync: Desync;
  /** A room that was joined before cannot be joined again, and is left. */
  refused: { room: string; error: SwitchboardError };
  lag: Lag;
  goaway: Goaway;
}

/** How a client is made. One of `token` and `ticket` is needed for {@link Switchboard.connect}. */
export interface Options {
  /** The addresses of the server or its replicas, tried in turn; where the module came from by default. */
  url?: string | string[];
  /**
   * The access token of the user, by which tickets are minted and streams are read. A function is asked each time, and
   * again with `isRefused` when the server did not take what it gave.
   */
  token?: string | ((state: { isRefused: boolean }) => string | Promise<string>);
  /**
   * Gives a fresh ticket for each connection, for instance from the server of the application. A failure is tried again
   * unless its `retryable` is `false`.
   */
  ticket?: (url: string) => string | Promise<string>;
}

/** How a room is joined. */
export interface JoinOptions {
  /** After this position, or from an end of the history; `latest` by default. */
  since?: Position | "latest" | "earliest";
  /** Whether the user shows themselves in the room. */
  presence?: boolean;
  /** Takes the events of the room: stored ones once, in order, without holes. */
  onEvent?: (event: RoomEvent) => void;
  /** Is told when events are missing, also at the first join. */
  onDesync?: (desync: Desync) => void;
}

/** What a publish gave. */
export interface Published {
  msg_id: string;
  /** Absent for an ephemeral event. */
  position?: Position;
  /** Whether the same message had been published before. */
  duplicate: boolean;
}

/** A stretch of the history of a room. */
export interface HistoryPage {
  epoch: string;
  /** The offset of the newest event. */
  top: number;
  /** The offset of the oldest event that is kept. */
  first_kept: number;
  events: { offset: number; event: string; payload: unknown; msg_id: string; sender: string; at: string }[];
}

/** Who shows themselves in a room. */
export interface Presence {
  count: number;
  /** Absent in a room with very many. */
  members?: { user_id: string; since: string }[];
}

/** What a handler of calls is given beside the payload. */
export interface CallContext {
  callId: string;
  /** Aborts when the call can no longer be answered. */
  signal: AbortSignal;
}

/** A stretch of a stream. */
export interface StreamChunk {
  /** Its number, the cursor after which reading goes on. */
  seq: number;
  /** Text; bytes of a binary stream in base64. */
  data: string;
}

/** How a stream ended. */
export interface StreamEnd {
  state: "completed" | "failed" | "cancelled" | "interrupted";
  reason?: string;
}

/**
 * Reads a stream to its end, over as many connections as it takes. The loop over it ends when the stream has ended, and
 * throws otherwise.
 */
export interface StreamReader extends AsyncIterable<StreamChunk> {
  /** How the stream ended; `null` before. */
  readonly end: StreamEnd | null;
  /** The number of the last chunk that was handed over. */
  readonly seq: number;
}

/** Why something that was asked for did not happen. */
export class SwitchboardError extends Error {
  constructor(error: { code: string; message: string; retryable?: boolean; retry_after_ms?: number });
  /**
   * An error code of the server, or one of the client: `closed`, or `lost` when the network failed and whether the
   * operation took effect is unknown.
   */
  readonly code: string;
  /** Whether the same may succeed later. */
  readonly retryable: boolean;
  /** How long to wait first. */
  readonly retryAfterMs: number;
}

/**
 * A socket that outlives its connections. Rooms are joined again after each, and go on after the last event that was
 * handed over. Operations wait for a connection when there is none.
 */
export class Switchboard {
  constructor(options?: Options);

  /** Whose socket it is, while connected. */
  readonly userId: string | undefined;

  /** Starts to connect, and goes on to whenever a connection ends; settles with the first connection, or the end. */
  connect(): Promise<Hello>;

  /** Ends it: what waits fails with `closed`, and nothing follows. */
  close(): void;

  /** Gives up the current connection for another, to the next address. */
  reconnect(): void;

  /** Calls `handler` for each notice of this name; returns how to stop that. */
  on<Name extends keyof Notices>(name: Name, handler: (notice: Notices[Name]) => void): () => void;

  /**
   * Joins a room, and again with each connection until it is left. First events may come before the promise settles.
   * The room `user:<id>` of the user need not be joined, unless to resume it from a position.
   */
  join(room: string, options?: JoinOptions): Promise<Joined>;

  /** Leaves a room at once; `false` if it was not joined. */
  leave(room: string): boolean;

  /** Up to where a joined room was handed over: keep it, and give it to `join` after a reload of the page. */
  position(room: string): Position | null;

  /**
   * Publishes an event. A stored one is sent again under the same id when a connection is lost, for up to five minutes,
   * and so stored once. After a failure with `lost`, give the same `msgId` to be sure.
   */
  publish(
    room: string,
    event: string,
    payload?: unknown,
    options?: { msgId?: string; ephemeral?: boolean },
  ): Promise<Published>;

  /** Reads the events of a joined room after an offset. */
  history(room: string, options?: { after?: number; limit?: number }): Promise<HistoryPage>;

  /** Reads who is in a room. */
  presence(room: string): Promise<Presence>;

  /** Prolongs the right to the socket with a new access token, in place. */
  auth(token: string): Promise<void>;

  /**
   * Answers calls of this event with what the handler returns, or with the message of what it throws. A call is
   * executed by one client only, after it was claimed. Returns how to stop that.
   */
  onCall(event: string, handler: (payload: any, context: CallContext) => unknown): () => void;

  /** Reads a stream after a chunk, from its beginning by default. It needs the option `token`, but no connection. */
  readStream(id: string, options?: { after?: number; signal?: AbortSignal }): StreamReader;

  /** Asks the producer of a stream to stop. */
  stopStream(id: string): Promise<void>;
}
