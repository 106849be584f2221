"""The benches of this machine: as many as workers, each with a thread of this process that waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable

from sparsegen.batch.bench import Bench, Stopped
from sparsegen.batch.jobs import Job
from sparsegen.errors import SparsegenError

POLL_SECONDS = 0.2  # between looks at whether to stop


def records(
    jobs: Iterable[Job], settings: dict, workers: int, stopping: Callable[[], bool]
) -> Generator[dict, None, None]:
    """A record of each job, as they are done, until there are no more or `stopping()`; then what runs is lost.

    Raises SparsegenError where no job can be done here.
    """
    waiting, made = iter(jobs), queue.Queue[dict | SparsegenError | None]()
    lock, benches = threading.Lock(), [Bench(settings) for _ in range(workers)]

    def work(bench: Bench) -> None:
        try:
            while True:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                made.put(bench.do(job))
        except Stopped:
            pass
        except SparsegenError as error:
            made.put(error)
        finally:
            bench.stop()
            made.put(None)

    threads = [threading.Thread(target=work, args=(bench,), daemon=True) for bench in benches]
    for thread in threads:
        thread.start()
    try:
        left = workers
        while left and not stopping():
            try:
                found = made.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(found, SparsegenError):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for bench in benches:
            bench.stop()
        for thread in threads:
            thread.join()
