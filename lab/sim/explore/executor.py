"""Who does the work: this thread, threads, processes, or a Dask cluster, behind one small interface.

A `Task` is sent to each worker once, with all that is large; every worker starts it once and then works on items, which
are small. Results come as they are ready, in any order: what is made of them must not depend on the order, nor on who
did which item.

Compiled code lets go of the interpreter lock, so exploration runs in threads, which share the tables and start at once.
Work that is mostly Python (race checks of many programs) needs processes. Dask goes beyond one machine.
"""

from __future__ import annotations

import concurrent.futures as futures
import logging
import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, TypeVar

from lab.errors import LabError, UnknownNameError
from lab.sim.explore.orphans import begin_worker
from lab.sim.machine.compiled import digest

Item = TypeVar("Item")
Result = TypeVar("Result")
ENGINES = ("local", "dask")
_AHEAD = 2  # items handed out for each worker, so that none waits for the next
_CONNECT_SECONDS = 10


class Task(Protocol[Item, Result]):
    """Work on items of one kind. Picklable; carries what all items share."""

    def start(self) -> Callable[[Item], Result]:
        """Make what a worker keeps between items; called once a worker, in the worker."""
        ...


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """One item and what came of it.

    Attributes:
        item: The item.
        result: Its result; None if it was lost.
        lost: Why there is no result: every worker that took the item died. None: there is one.
    """

    item: Item
    result: Result | None
    lost: str | None = None


class Executor(Protocol):
    """Works on the items of a task.

    Attributes:
        workers: Items that are worked on at a time.
    """

    workers: int

    def unordered(self, task: Task[Item, Result], items: Iterable[Item]) -> Iterator[Done[Item, Result]]:
        """Yield each item with its result as it is ready.

        Items are drawn only when a worker is about to be free. Closing the iterator, or an exception such as Ctrl-C
        in it, hands out no more items and waits for those under way, so items should be short. An exception that an
        item raises is raised here. An item whose worker dies is tried again; if that one dies too, it is lost.
        """
        ...

    def close(self) -> None:
        """Give back what the executor holds."""
        ...


class _Closing:
    """What the executors share: `with` closes them."""

    def close(self) -> None:
        """Give back what the executor holds: here, nothing."""

    def __enter__(self):
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Crew(Generic[Item, Result]):
    """A task and the workers of this process that have started it; sent elsewhere, it is the task alone."""

    def __init__(self, task: Task[Item, Result]) -> None:
        self.task = task
        self._idle: list[Callable[[Item], Result]] = []  # appending and popping are atomic

    def __call__(self, item: Item) -> Result:
        """Work on an item with a started worker that is idle, or with a new one."""
        try:
            work = self._idle.pop()
        except IndexError:
            work = self.task.start()
        result = work(item)
        self._idle.append(work)
        return result

    def __reduce__(self):
        return Crew, (self.task,)


class InProcess(_Closing):
    """This thread, one item after the other."""

    workers = 1

    def unordered(self, task: Task[Item, Result], items: Iterable[Item]) -> Iterator[Done[Item, Result]]:
        """As `Executor.unordered`."""
        work = task.start()
        for item in items:
            yield Done(item, work(item))


class Threads(_Closing):
    """Threads of this process, for tasks that spend their time in compiled code."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def unordered(self, task: Task[Item, Result], items: Iterable[Item]) -> Iterator[Done[Item, Result]]:
        """As `Executor.unordered`."""
        crew = Crew(task)
        with _Arrivals() as arrivals:
            pool = futures.ThreadPoolExecutor(self.workers)
            try:
                for item, future in arrivals.of(lambda item: pool.submit(crew, item), items, _AHEAD * self.workers):
                    yield Done(item, future.result())
            finally:
                pool.shutdown(cancel_futures=True)


class Processes(_Closing):
    """Processes of this machine, for tasks that spend their time in Python.

    When a process dies, all items under way are suspects: each is done again in a process of its own, so that one that
    kills its worker again is known and only that one is lost.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def unordered(self, task: Task[Item, Result], items: Iterable[Item]) -> Iterator[Done[Item, Result]]:
        """As `Executor.unordered`."""
        left = iter(items)
        suspects: list[Item] = []
        with _Arrivals() as arrivals:
            while True:
                for item, future in self._pooled(task, _until(left, suspects), self.workers, arrivals):
                    try:
                        done = Done(item, future.result())
                    except BrokenProcessPool:
                        suspects.append(item)
                        continue
                    yield done
                if not suspects:
                    return
                for item in suspects:
                    yield self._alone(task, item, arrivals)
                suspects.clear()

    def _alone(self, task: Task[Item, Result], item: Item, arrivals: _Arrivals) -> Done[Item, Result]:
        for _, future in self._pooled(task, [item], 1, arrivals):
            try:
                return Done(item, future.result())
            except BrokenProcessPool:
                break
        return Done(item, None, "the processes that worked on it died (out of memory?)")

    def _pooled(
        self, task: Task[Item, Result], items: Iterable[Item], workers: int, arrivals: _Arrivals
    ) -> Iterator[tuple[Item, futures.Future[Result]]]:
        pool = futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(Crew(task),)
        )

        def submit(item: Item) -> futures.Future[Result]:
            try:
                return pool.submit(_work_here, item)
            except BrokenProcessPool as broken:
                failed: futures.Future[Result] = futures.Future()
                failed.set_exception(broken)
                return failed

        try:
            yield from arrivals.of(submit, items, _AHEAD * workers)
        finally:
            pool.shutdown(cancel_futures=True)


_crew: Crew | None = None  # of a worker process, which serves one task; set when the process starts


def _begin(crew: Crew) -> None:
    """Start a worker process; Ctrl-C is for the process that started it."""
    global _crew
    begin_worker()
    _crew = crew


def _work_here(item: Any) -> Any:
    assert _crew is not None
    return _crew(item)


class Dask(_Closing):
    """A Dask cluster: one that runs, by its address, or one that is started here and ends with this.

    The task is scattered to all workers. Dask itself gives an item to another worker when one dies.
    """

    def __init__(self, address: str | None = None, workers: int = 1, processes: bool = True) -> None:
        """Connect, or start a cluster on this machine.

        Args:
            address: Of a scheduler, such as tcp://10.0.0.1:8786; None: start `workers` workers here.
            workers: Of a cluster that is started here, one thread each.
            processes: Whether these are processes, or threads of this one.

        Raises:
            LabError: Dask is not installed, the cluster cannot be reached, or its workers run other code than this.
        """
        self._distributed = _distributed()
        self._cluster = None if address else self._start(workers, processes)
        try:
            self._client = self._distributed.Client(address or self._cluster, timeout=_CONNECT_SECONDS)
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as problem:
            self.close()
            raise LabError(
                "the Dask cluster cannot be reached, or has no workers", value=address, hint=str(problem) or None
            ) from problem
        self._same_code()
        if self._cluster and processes:
            self._client.run(_leave_interrupts)
        self.workers = sum(self._client.nthreads().values())

    def _start(self, workers: int, processes: bool) -> Any:
        import dask

        with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
            return self._distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=processes,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )

    def _same_code(self) -> None:
        """Refuse workers that would find other results: each must have these sources."""
        try:
            theirs = self._client.run(digest)
        except Exception as problem:  # Dask passes an error that comes before the function on as a text
            self.close()
            if "No module named" not in str(problem):
                raise
            raise LabError(
                "the Dask workers do not have this lab", value=str(problem), hint="install the same version there"
            ) from problem
        other = sorted(worker for worker, found in theirs.items() if found != digest())
        if other:
            self.close()
            raise LabError(
                "Dask workers run another version of the lab", value=other[0], hint="install the same version there"
            )

    def unordered(self, task: Task[Item, Result], items: Iterable[Item]) -> Iterator[Done[Item, Result]]:
        """As `Executor.unordered`."""
        left = iter(items)
        again: list[Item] = []
        with _Arrivals() as arrivals:
            while True:
                lost_before = list(again)
                again.clear()
                yield from self._round(task, lost_before, left, again, arrivals)
                if not again:
                    return

    def _round(
        self,
        task: Task[Item, Result],
        before: list[Item],
        left: Iterator[Item],
        again: list[Item],
        arrivals: _Arrivals,
    ) -> Iterator[Done[Item, Result]]:
        """Scatter the task and work; items whose task was lost with the workers that held it are put into `again`."""
        client = self._client
        crew = client.scatter(Crew(task), broadcast=True, hash=False)
        pending = [*before]

        def items() -> Iterator[Item]:
            yield from pending
            yield from _until(left, again)

        def submit(item: Item) -> Any:
            return client.submit(_work, crew, item, pure=False)

        for item, future in arrivals.of(submit, items(), _AHEAD * self.workers):
            try:
                done = Done(item, future.result())
            except self._distributed.KilledWorker:
                done = Done(item, None, "the Dask workers that worked on it died (out of memory?)")
            except futures.CancelledError:
                if item in before:
                    done = Done(item, None, "all Dask workers died, twice")
                else:
                    again.append(item)
                    continue
            yield done

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        for held in ("_client", "_cluster"):
            found = getattr(self, held, None)
            if found is not None:
                found.close()


def _work(crew: Crew, item: Any) -> Any:
    return crew(item)


def _leave_interrupts() -> None:
    """Ctrl-C in a terminal reaches all its processes; only the one that waits for results answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as problem:
        raise LabError(
            "the engine dask needs the package distributed",
            hint="pip install 'research-kernel-lab[dask]', or pip install distributed",
        ) from problem
    return distributed


def executor(engine: str = "local", workers: int = 1, address: str | None = None) -> InProcess | Threads | Dask:
    """The executor of an exploration.

    Args:
        engine: "local" (this process) or "dask".
        workers: Threads of "local"; workers of a Dask cluster that is started here.
        address: Of a running Dask scheduler.

    Raises:
        LabError: There is no such engine, an address without Dask, or Dask cannot be used.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if engine == "dask":
        return Dask(address, workers)
    if address is not None:
        raise LabError("only the engine dask has an address", value=address, hint="add --engine dask")
    return InProcess() if workers == 1 else Threads(workers)


def by_process(workers: int) -> InProcess | Processes:
    """The executor of tasks that are mostly Python."""
    return InProcess() if workers == 1 else Processes(workers)


def _until(items: Iterator[Item], stop: list[Any]) -> Iterator[Item]:
    """The items, as long as `stop` is empty."""
    while not stop:
        try:
            yield next(items)
        except StopIteration:
            return


class _Arrivals:
    """Futures as they are done, and Ctrl-C, which arrives like one of them.

    Left to itself, Ctrl-C raises KeyboardInterrupt between any two instructions, also where the standard library has
    just taken a lock, and a worker would wait for that lock for ever. Here it is kept until the next look for results;
    a second one is raised where it strikes. Only the main thread ever sees Ctrl-C.
    """

    def __init__(self) -> None:
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()  # its `put` may be called from a signal handler
        self._before: Any = None
        self._interrupted = False

    def __enter__(self) -> _Arrivals:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._interrupted and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            self._before(number, frame)
        self._interrupted = True
        self._done.put(None)

    def of(self, submit: Callable[[Item], Any], items: Iterable[Item], ahead: int) -> Iterator[tuple[Item, Any]]:
        """Keep `ahead` items submitted and yield each with its future when that is done; cancel the rest at the end."""
        left = iter(items)
        waiting: dict[Any, Item] = {}
        try:
            while True:
                while len(waiting) < ahead:
                    try:
                        item = next(left)
                    except StopIteration:
                        break
                    future = submit(item)
                    waiting[future] = item
                    future.add_done_callback(self._done.put)
                if not waiting:
                    return
                done = self._done.get()
                if self._interrupted:
                    raise KeyboardInterrupt
                if done in waiting:  # and is not one that was cancelled when an earlier round ended
                    yield waiting.pop(done), done
        finally:
            for future in waiting:
                future.cancel()
