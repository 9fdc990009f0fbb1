/**
 * graphile-worker: a queueName for each group.
 *
 * With its local queue it is set as its documentation's performance page has it for the highest rate: concurrentJobs 24,
 * maxPoolSize one more, localQueue of 500, completeJobBatchDelay and failJobBatchDelay 0; a key that says direct leaves
 * local queue and batches off, as they are unless set. A worker that finds every queue taken waits for the pollInterval,
 * 2 s unless set, however soon one is free: it is 10 ms here. Many jobs are added by addJobs().
 *
 * Jobs go by run_at alone, which is now() unless given, the same for all of one addJobs(). Unless its key says plain,
 * each is given a runAt that is at least a millisecond, the least that a Date holds, after its group's last.
 */

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { groupName, serve } from "./protocol.mjs";

const TASK = "handle";
const POLLING_MS = 10;
const lasts = new Map();

let preset;
let utils;
let given = true;

/** What comes in one call has to be of different milliseconds, and none in the future: so it begins a day ago. */
const DAY_AGO = Date.now() - 86_400_000;

function runAt(group, from) {
  const at = Math.max(from, (lasts.get(group) ?? 0) + 1);
  lasts.set(group, at);
  return new Date(at);
}

const spec = ({ group, number }, from) => ({
  identifier: TASK,
  payload: { group, number },
  queueName: groupName(group),
  ...(given && { runAt: runAt(group, from) }),
});

await serve({
  async open(place, key) {
    given = !key.includes("-plain-");
    const local = !key.includes("-direct-");
    const quiet = new Logger(() => (level, message) => {
      if (level === "error") console.error(message);
    });
    preset = {
      worker: {
        connectionString: place,
        logger: quiet,
        pollInterval: POLLING_MS,
        ...(local && { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }),
      },
    };
    utils = await makeWorkerUtils({ preset });
    await utils.migrate();
  },

  async publish(message) {
    const { identifier, payload, ...rest } = spec(message, Date.now());
    await utils.addJob(identifier, payload, rest);
  },

  async publishMany(messages) {
    await utils.addJobs(messages.map((message) => spec(message, DAY_AGO)));
  },

  async work(handle, concurrency) {
    const runner = await run({
      preset: {
        extends: [preset],
        worker: { concurrentJobs: concurrency, maxPoolSize: concurrency + 1 },
      },
      noHandleSignals: true,
      taskList: { [TASK]: ({ group, number }) => handle(group, number) },
    });
    runner.promise.catch((error) => console.error(error)); // it is awaited only at the end
    return async () => {
      await runner.stop();
      await runner.promise;
    };
  },

  async waiting() {
    const { rows } = await utils.withPgClient((client) => client.query("select count(*)::int as n from graphile_worker.jobs"));
    return rows[0].n;
  },

  async close() {
    await utils.release();
  },
});
