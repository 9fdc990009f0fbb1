/**
 * GroupMQ: a group is its groupId.
 *
 * Many messages are added to a queue with autoBatch, its way to send many in one call; one alone goes without, so that it
 * waits for no batch. The worker is as it comes, but for its concurrency.
 */

import { Queue, Worker } from "groupmq";
import { Redis } from "ioredis";
import { groupName, serve } from "./protocol.mjs";

const AUTO_BATCH = { size: 100, maxWaitMs: 10 };

const job = ({ group, number }) => ({ groupId: groupName(group), data: { group, number } });

await serve({
  async open(place) {
    this.redis = new Redis(place, { maxRetriesPerRequest: null });
    const options = { redis: this.redis, namespace: "orders" };
    this.single = new Queue(options);
    this.batches = new Queue({ ...options, autoBatch: AUTO_BATCH });
  },

  async publish(message) {
    await this.single.add(job(message));
  },

  async publishMany(messages) {
    await Promise.all(messages.map((message) => this.batches.add(job(message))));
  },

  async work(handle, concurrency) {
    const worker = new Worker({
      queue: this.single,
      concurrency,
      handler: ({ data }) => handle(data.group, data.number),
    });
    worker.on("error", (error) => console.error(error));
    worker.run().catch((error) => console.error(error));
    return () => worker.close();
  },

  async waiting() {
    const { active, waiting, delayed } = await this.single.getJobCounts();
    return active + waiting + delayed;
  },

  async close() {
    await this.batches.close();
    this.redis.disconnect();
  },
});
