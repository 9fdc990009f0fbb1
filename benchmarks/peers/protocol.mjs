/**
 * The protocol of benchmarks/handler.py for a peer on Node: an object a line comes in, is carried out, and is answered
 * with one.
 *
 * A peer is an object with these, all async:
 *   open(place, key)      the URL of a database of its own, where it makes what it needs, and its contender's key
 *   publish(message)      a message is {group, number}
 *   publishMany(messages) in this order, by what its documentation has for many
 *   work(handle, concurrency) start a worker that awaits handle(group, number) for every message; what it returns stops it
 *   waiting()             how many messages are left, or null
 *   close()
 */

import { closeSync, fstatSync, openSync, readSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const SLOT_BYTES = 8;
const LOOK_MS = 10;
const TICK_MS = 10;
const BEFORE_FLOW_MS = 300;
const STUCK_MS = 1e3 * Number(process.env.HAREL_BENCH_STUCK_S || 60);
const AT_ONCE = 1_000;

export const groupName = (group) => `order-${String(group).padStart(7, "0")}`;

/**
 * The seconds of the clock that all processes of the machine share: the one of Python's time.perf_counter(). It is asked
 * each time, since performance.now() counts from a moment that cannot be told exactly.
 */
const now = () => Number(process.hrtime.bigint()) / 1e9;

/** Carry out commands until there are no more. */
export async function serve(peer) {
  const answers = openSync("/dev/fd/1", "w");
  // What a peer prints must not come between the answers.
  process.stdout.write = process.stderr.write.bind(process.stderr);
  const commands = new Commands(peer);
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: command, ...given } = JSON.parse(line);
    let answer;
    try {
      answer = (await commands[command](given)) ?? {};
    } catch (error) {
      answer = { error: error.stack ?? String(error) };
    }
    write(answers, `${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

function write(file, text) {
  const bytes = Buffer.from(text);
  for (let from = 0; from < bytes.length; ) from += writeSync(file, bytes, from);
}

/** The commands, by their names. */
class Commands {
  constructor(peer) {
    this.peer = peer;
  }

  async open({ place }) {
    await this.peer.open(place, process.argv[2]);
  }

  async prepare() {} // for groups there is nothing to do

  async close() {
    await this.peer.close();
  }

  async waiting() {
    return { messages: await this.peer.waiting() };
  }

  async backlog({ groups, each, sizes }) {
    const messages = inRounds(sizes ?? Array(groups).fill(each));
    for (let start = 0; start < messages.length; start += AT_ONCE) {
      await this.peer.publishMany(messages.slice(start, start + AT_ONCE));
    }
  }

  async handle({ count, tally, slot, concurrency, pause_ms: pauseMs = 0 }) {
    const file = openSync(tally, "r+");
    const slots = Buffer.alloc(fstatSync(file).size);
    const seen = [];
    const note = (group, number) => {
      seen.push([now(), group, number]);
    };
    const noteAndPause = async (group, number) => {
      const began = now();
      await sleep(pauseMs);
      seen.push([began, group, number, now()]);
    };
    const look = () => {
      slots.writeBigUInt64LE(BigInt(seen.length), slot * SLOT_BYTES);
      writeSync(file, slots, slot * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES);
      readSync(file, slots, 0, slots.length, 0);
      let handled = 0;
      for (let at = 0; at < slots.length; at += SLOT_BYTES) handled += Number(slots.readBigUInt64LE(at));
      return handled;
    };
    const busy = process.cpuUsage();
    let began;
    try {
      const stop = await this.peer.work(pauseMs > 0 ? noteAndPause : note, concurrency);
      began = Math.min(now(), ...seen.slice(0, 1).map(([when]) => when)); // that it connects is not its work
      try {
        await untilHandled(count, look);
      } finally {
        await stop();
      }
    } finally {
      closeSync(file);
    }
    const { user, system } = process.cpuUsage(busy);
    return { began, client_s: (user + system) / 1e6, seen };
  }

  async trickle({ groups, count, pause_s: pauseS }) {
    const published = [];
    await sleep(20e3 * pauseS); // so that the worker waits
    for (let at = 0; at < count; at += 1) {
      await sleep(1e3 * pauseS * (0.5 + Math.random())); // so as not to keep step with one that polls
      const [group, number] = [at % groups, Math.floor(at / groups)];
      await this.peer.publish({ group, number });
      published.push([now(), group, number]);
    }
    return { published };
  }

  async handle_trickle({ groups, count, pause_s, ...work }) {
    const [handled, published] = await Promise.all([
      this.handle({ count, slot: 0, ...work }),
      this.trickle({ groups, count, pause_s }),
    ]);
    return { handled, published };
  }

  /** Publish at a rate: at every tick as many as are due by then. */
  async flow({ groups, rate, seconds }) {
    const published = [];
    const count = Math.round(rate * seconds);
    await sleep(BEFORE_FLOW_MS); // so that the worker waits
    const began = performance.now();
    for (let tick = 1; published.length < count; tick += 1) {
      await sleep(Math.max(0, began + tick * TICK_MS - performance.now()));
      const due = Math.min(count, Math.round((rate * tick * TICK_MS) / 1e3));
      const messages = [];
      for (let at = published.length; at < due; at += 1) {
        messages.push({ group: at % groups, number: Math.floor(at / groups) });
      }
      if (!messages.length) continue;
      await this.peer.publishMany(messages);
      const when = now();
      for (const { group, number } of messages) published.push([when, group, number]);
    }
    return { published };
  }
}

/** A message of every group that has any left, then the next of each. */
function inRounds(sizes) {
  const messages = [];
  let left = sizes.map((_, group) => group).filter((group) => sizes[group] > 0);
  for (let number = 0; left.length; number += 1) {
    for (const group of left) messages.push({ group, number });
    left = left.filter((group) => sizes[group] > number + 1);
  }
  return messages;
}

/** Wait until enough was handled by all processes; throw when nothing is handled any more. */
async function untilHandled(count, look) {
  let before = -1;
  let since = performance.now();
  for (;;) {
    const handled = look();
    if (handled >= count) return;
    if (handled !== before) {
      [before, since] = [handled, performance.now()];
    } else if (performance.now() - since > STUCK_MS) {
      throw new Error(`${handled} of ${count} messages were handled, and then none for ${STUCK_MS / 1e3} s.`);
    }
    await sleep(LOOK_MS);
  }
}
