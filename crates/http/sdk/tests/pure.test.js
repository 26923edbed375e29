/** The parts without a network: positions, pacing, close codes, server-sent events. */

import assert from "node:assert/strict";
import test from "node:test";

import { afterClose, Pacing, SseParser, Track } from "../switchboard.js";

const event = (offset, epoch = "e") => ({ offset, epoch });
const answer = (offset, { epoch = "e", recovered = true, replayed = 0 } = {}) => ({ epoch, offset, recovered, replayed });

function joinedAt(offset, since) {
  const track = new Track(since);
  track.join();
  assert.equal(track.joined(answer(offset)), true);
  return track;
}

const verdicts = (track, ...offsets) => offsets.map((offset) => track.judge(event(offset)));

test("a resumed room goes on after the last event and drops doubles", () => {
  const track = joinedAt(5);
  assert.deepEqual(verdicts(track, 6, 7, 7), ["deliver", "deliver", "drop"]);
  assert.deepEqual(track.join(), { epoch: "e", offset: 7 });
  assert.equal(track.joined(answer(7, { replayed: 1 })), true);
  assert.deepEqual(verdicts(track, 7, 8, 9), ["drop", "deliver", "deliver"]);
});

test("a room without any event resumes where it was joined", () => {
  assert.deepEqual(joinedAt(5).join(), { epoch: "e", offset: 5 });
});

test("events around the answer of a join come once and in order", () => {
  const track = joinedAt(5);
  track.join();
  assert.deepEqual(verdicts(track, 9), ["drop"], "before the answer");
  track.joined(answer(5, { replayed: 5 }));
  assert.deepEqual(verdicts(track, 10), ["drop"], "queued before the answer");
  assert.deepEqual(verdicts(track, 6, 7, 8, 9, 10, 11), Array(6).fill("deliver"));
});

test("a hole is a gap, and asking again fills it", () => {
  const track = joinedAt(5);
  assert.deepEqual(verdicts(track, 8), ["gap"]);
  assert.deepEqual(track.join(), { epoch: "e", offset: 5 });
  assert.equal(track.joined(answer(5, { replayed: 3 })), true);
  assert.deepEqual(verdicts(track, 6, 7, 8), Array(3).fill("deliver"));
});

test("what cannot be continued is said, and goes on from the answer", () => {
  const track = joinedAt(5);
  track.join();
  assert.equal(track.joined(answer(2, { epoch: "f", recovered: false })), false);
  assert.equal(track.judge(event(3, "f")), "deliver");
});

test("a position that the server lost is not hidden by a reconnect", () => {
  const track = joinedAt(5);
  track.lose();
  assert.equal(track.join(), "latest");
  assert.equal(track.joined(answer(9)), false);
  assert.deepEqual(verdicts(track, 10), ["deliver"]);
});

test("the first event names the history", () => {
  const track = new Track();
  track.join();
  track.joined(answer(0, { epoch: "none" }));
  assert.deepEqual(track.join(), { epoch: "none", offset: 0 });
  track.joined(answer(0, { epoch: "none" }));
  assert.deepEqual(verdicts(track, 1, 2), ["deliver", "deliver"]);
  assert.equal(track.judge(event(3, "f")), "gap");
});

test("the caller's own position is resumed at the first join, and its loss is said", () => {
  const track = new Track({ epoch: "e", offset: 3 });
  assert.deepEqual(track.join(), { epoch: "e", offset: 3 });
  assert.equal(track.joined(answer(3, { replayed: 2 })), true);
  assert.deepEqual(verdicts(track, 3, 4, 5), ["drop", "deliver", "deliver"]);
  const lost = new Track({ epoch: "e", offset: 3 });
  lost.join();
  assert.equal(lost.joined(answer(9, { recovered: false })), false);
});

test("both ends of the history can be joined, and ephemeral events have no position", () => {
  const track = new Track("earliest");
  assert.equal(track.join(), "earliest");
  assert.equal(track.judge({}), "deliver");
  assert.equal(track.joined(answer(0, { replayed: 2 })), true);
  assert.deepEqual(verdicts(track, 1, 2), ["deliver", "deliver"]);
});

test("the class of a close code decides", () => {
  const classes = {
    stop: [4000, 4001, 4003, 4008, 4010, 4011, 4099, 1002, 1003, 1007, 1009],
    "back-off": [4100, 4101, 4102, 4103, 4104, 4105, 1000, 1001, 1005, 1006, 1011, 1012, 1013, 4300, 3000],
    resume: [4200, 4201, 4202, 4299],
  };
  for (const [name, codes] of Object.entries(classes)) {
    for (const code of codes) assert.equal(afterClose(code), name, code);
  }
});

test("delays double up to ten seconds, with jitter over all of them", () => {
  const pacing = new Pacing();
  assert.equal(pacing.delay("resume", 1), 0, "the first one is at once");
  assert.equal(pacing.delay("resume", 1), 400, "it did not help");
  assert.equal(pacing.delay("back-off", 0.5), 400);
  assert.equal(pacing.delay("back-off", 0), 0);
  pacing.settle();
  assert.equal(pacing.delay("back-off", 1), 200);
  const delays = Array.from({ length: 2_000 }, () => pacing.delay("back-off", 1));
  assert.equal(Math.max(...delays), 10_000);
});

test("server-sent events are read from any pieces", () => {
  const text = ": comment\n\nid: 1\ndata: a\ndata:\ndata:  b\n\nevent: end\r\ndata: {}\r\n\r\nid: 2\n\ndata: rest";
  const expected = [
    { event: "message", id: "1", data: "a\n\n b" },
    { event: "end", id: undefined, data: "{}" },
  ];
  for (const size of [1, 2, 3, 7, text.length]) {
    const parser = new SseParser();
    const read = [];
    for (let at = 0; at < text.length; at += size) read.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(read, expected, `pieces of ${size}`);
  }
});
