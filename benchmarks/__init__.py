"""How fast harel is, beside its peers and beside what its backends could do at best.

``python -m benchmarks`` from the root of the repository; ``--help`` lists the options. How it is put together:

- ``servers.py``: the servers that a run starts for PostgreSQL and Redis.
- ``contenders.py``: who is measured. A contender is a small class with the core of the contract and a line in
  the registry; one that lives in a Python of its own names its environment. ``peers/``: those of which only the worker
  is measured, in Python or on Node.
- ``workloads.py``: what is measured of the operations, written once against the contract.
- ``worker.py``: the process of one contender, told what to do line by line. It runs in any environment, so it and what
  it imports at the top is plain standard library.
- ``processes.py``: starts workers, each in its environment.
- ``rounds.py``: opens queues and takes rounds from them in turn, so that whatever the machine does meanwhile
  happens to all of them.
- ``crews.py``: the worker runtimes of one contender on one queue, which ``runtimes.py`` has, each in the process of
  ``handler.py``; whatever they do is looked through for messages that were lost, doubled, out of order or beside
  another of their group.
- ``handled.py``: from publish to handled, harel beside its peers; a flow at half of their capacity. ``limits.py``: the
  same work by a bare driver, and by the server alone.
- ``drains.py``: large backlogs, even and uneven. ``flood.py``: new groups in a flood beside old ones.
- ``roundtrips.py``: how many round trips each operation takes on every backend; ``meters.py`` counts at the drivers.
- ``snapshot.py``, ``syncs.py``, ``memory.py``, ``machine.py``: what is measured only once in a run.
- ``results.py``, ``folders.py``: what was measured, and where.
- ``targets.py``, ``report.py``, ``report_beside.py``, ``report_workers.py``, ``tables.py``: what is to be reached, and
  the page that says whether it was. ``pictures.py``, ``plots.py``: its plots, in ``plots/``.
"""
