/** The types say what the module has, and nothing else. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import * as sdk from "../switchboard.js";

const TYPES = readFileSync(new URL("../switchboard.d.ts", import.meta.url), "utf8");
const FOR_TESTS = ["Pacing", "SseParser", "Track", "afterClose"];

/** Reads the members of a class in the types. */
function declared(name) {
  const [, body] = new RegExp(`export class ${name}\\b[^{]*\\{\n(.*?)\n\\}`, "s").exec(TYPES);
  return [...new Set([...body.matchAll(/^ {2}(?:readonly )?(\w+)[<(:]/gm)].map(([, member]) => member))].sort();
}

test("every export is described", () => {
  const names = [...TYPES.matchAll(/^export (?:class|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(names.sort(), Object.keys(sdk).filter((name) => !FOR_TESTS.includes(name)).sort());
});

test("every member of the client is described", () => {
  assert.deepEqual(declared("Switchboard"), Object.getOwnPropertyNames(sdk.Switchboard.prototype).sort());
});
