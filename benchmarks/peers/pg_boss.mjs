/**
 * pg-boss: a queue of policy key_strict_fifo, whose key is the group.
 *
 * What its documentation has for throughput: batchSize with burstWhenBatchFull, insert() for many, and useListenNotify
 * with a queue that notifies, so that a waiting worker is woken. A batch that is not full would wait for the next poll
 * although more is ready where groups are few, so the handler asks for the next fetch by notifyWorker().
 *
 * Jobs of one insert have one created_on, and then go by their id. Unless its key says plain, each is given one that
 * ascends, a UUID of version 7.
 */

import { randomBytes } from "node:crypto";
import { PgBoss } from "pg-boss";
import { groupName, serve } from "./protocol.mjs";

const QUEUE = "orders";

let boss;
let ids = true;
let last = 0n;

/** A UUID of version 7 that is above all before it: its first 48 bits are milliseconds, the next 12 count within one. */
function nextId() {
  const ticks = BigInt(Date.now()) << 12n;
  last = ticks > last ? ticks : last + 1n;
  const time = (last >> 12n).toString(16).padStart(12, "0");
  const count = (last & 0xfffn).toString(16).padStart(3, "0");
  const rest = randomBytes(8);
  rest[0] = (rest[0] & 0x3f) | 0x80;
  const random = rest.toString("hex");
  return `${time.slice(0, 8)}-${time.slice(8)}-7${count}-${random.slice(0, 4)}-${random.slice(4)}`;
}

const job = ({ group, number }) => ({
  ...(ids && { id: nextId() }),
  data: { group, number },
  singletonKey: groupName(group),
});

await serve({
  async open(place, key) {
    ids = !key.includes("-plain-");
    boss = new PgBoss({ connectionString: place, useListenNotify: true });
    boss.on("error", (error) => console.error(error));
    await boss.start();
    await boss.createQueue(QUEUE, { policy: "key_strict_fifo", notify: true });
  },

  async publish(message) {
    const { data, ...options } = job(message);
    await boss.send(QUEUE, data, options);
  },

  async publishMany(messages) {
    await boss.insert(QUEUE, messages.map(job));
  },

  async work(handle, concurrency) {
    const options = { batchSize: concurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    const worker = await boss.work(QUEUE, options, async (jobs) => {
      boss.notifyWorker(worker);
      await Promise.all(jobs.map(({ data }) => handle(data.group, data.number)));
    });
    return () => boss.offWork(QUEUE, { wait: true });
  },

  async waiting() {
    const [{ queuedCount = 0, activeCount = 0 }] = [await boss.getQueueStats(QUEUE)].flat();
    return queuedCount + activeCount;
  },

  async close() {
    await boss.stop({ graceful: false });
  },
});
