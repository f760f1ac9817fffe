"""Jobs in processes of their own, so that one that crashes or hangs costs that job alone."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any


@dataclass(frozen=True)
class Lost:
    """What a job gives whose process died or was stopped."""

    why: str


class FatalError(Exception):
    """Raised by a job: its process is of no further use; the argument is the job's result."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    job: Any = None
    since: float = 0.0


def results(
    work: Callable[[Any], Any],
    jobs: Iterable[Any],
    *,
    processes: int,
    each_s: float,
    total_s: float,
) -> Iterator[tuple[Any, Any]]:
    """Yield each job and what ``work(job)`` returned, or `Lost`, in the order they end.

    Parameters
    ----------
    work : callable
        Of a module's own level: the processes are spawned, and have one BLAS thread each.
    each_s, total_s : float
        Seconds after which a job is given up, and after which no more are begun.
    """
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    queue, end = iter(jobs), time.monotonic() + total_s
    workers = [_start(work) for _ in range(processes)]
    try:
        for worker in workers:
            _feed(worker, queue, end)
        while any(worker.job is not None for worker in workers):
            busy = {worker.pipe: worker for worker in workers if worker.job is not None}
            for pipe in wait(list(busy), timeout=1.0):
                worker = busy[pipe]  # type: ignore[index]
                job = worker.job
                try:
                    good, result = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join(5)
                    good, result = False, Lost(f"its process died ({worker.process.exitcode})")
                if not good:
                    _replace(worker, work)
                _feed(worker, queue, end)
                yield job, result
            for worker in workers:
                if worker.job is not None and time.monotonic() - worker.since > each_s:
                    job = worker.job
                    _replace(worker, work)
                    _feed(worker, queue, end)
                    yield job, Lost(f"not done after {each_s:.0f} s")
    finally:
        for worker in workers:
            _stop(worker)


def _start(work: Callable[[Any], Any]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(work, there), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _stop(worker: _Worker) -> None:
    if worker.job is None:
        worker.pipe.close()
        worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join(10)


def _replace(worker: _Worker, work: Callable[[Any], Any]) -> None:
    _stop(worker)
    fresh = _start(work)
    worker.process, worker.pipe, worker.job = fresh.process, fresh.pipe, None


def _feed(worker: _Worker, queue: Iterator[Any], end: float) -> None:
    worker.job = None if time.monotonic() > end else next(queue, None)
    worker.since = time.monotonic()
    if worker.job is not None:
        worker.pipe.send(worker.job)


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, work(job)
        except FatalError as fatal:
            answer = False, fatal.args[0]
        pipe.send(answer)
