"""Work that would hold up the loop: done on it while it is small, in threads beyond that.

Knows: sizes and threads. Does not know: what the work is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Worker:
    """Threads for one kind of work.

    Args:
        name: of the threads.
        threads: how many pieces of large work may be done at once.
        inline: work up to this size is done at once, on the loop. In what unit is up to the callers.
        niceness: above 0, the threads take what processor time others leave, where the system knows
            priorities of threads.
    """

    def __init__(self, name: str, threads: int, inline: int, niceness: int = 0) -> None:
        self._threads = ThreadPoolExecutor(
            max_workers=threads, thread_name_prefix=name, initializer=_be_nice, initargs=(niceness,)
        )
        self._inline = inline

    async def do(self, size: int, work: Callable[[], Result]) -> Result:
        """The result of `work`. A caller that is cancelled does not wait for it: work that has not begun is
        dropped, other goes on unattended.

        Raises:
            BaseException: what `work` raises.
        """
        if size <= self._inline:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Do something in a thread, whatever its size."""
        return self._threads.submit(work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _be_nice(niceness: int) -> None:
    # Elsewhere it would be the whole process that steps back.
    if niceness and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
