"""Starts a command, passes signals on to it and waits for its end.

The child stays in the launcher's process group, so that a terminal's Ctrl-C and Ctrl-Z reach it as
without a launcher, once. A signal that somebody sends to the launcher is sent on.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rca_llm.errors import RcaError

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 4

# Left alone: what cannot be caught, faults of the launcher itself, and job control, which the
# terminal sends to the whole process group.
_NOT_FORWARDED = [
    "SIGKILL",
    "SIGSTOP",
    "SIGSEGV",
    "SIGBUS",
    "SIGFPE",
    "SIGILL",
    "SIGTRAP",
    "SIGSYS",
    "SIGCHLD",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGPIPE",
    "SIGXFSZ",
]
# Python ignores these two; a command expects them as they were.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


class NotStarted(RcaError):
    """The command did not start; ``status`` is what a shell would report."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def hold_signals() -> set[int]:
    """Keep signals pending from here on, so that none is lost; the signal mask before.

    The mask is in numbers, since signals between the first and the last of the real-time ones have
    no name.

    Must be called before any thread starts: threads inherit the mask, and one that does not hold a
    signal would take it. `release_signals` undoes it.
    """
    held = forwarded() | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    return {int(number) for number in before}


def release_signals(mask: set[int]) -> None:
    """Go back to a signal mask; what came meanwhile and was not passed on is this process's own."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def forwarded() -> set[int]:
    """The signals that are passed on."""
    left_alone = {getattr(signal, name) for name in _NOT_FORWARDED}
    return {int(number) for number in signal.valid_signals()} - {int(n) for n in left_alone}


def start(command: Sequence[str], env: Mapping[str, str], mask: set[int]) -> int:
    """Start ``command`` with ``env`` and the signal mask ``mask``; its pid.

    Every inherited file descriptor stays open. Raises `NotStarted`.
    """
    try:
        return _spawn(command, env, mask)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            script = shutil.which(command[0]) or command[0]
            return start(["/bin/sh", script, *command[1:]], env, mask)
        raise _not_started(command[0], error) from None
    except ValueError as error:  # a NUL in an argument
        raise NotStarted(f"{command[0]!r}: {error}", NOT_EXECUTABLE) from None


def _spawn(command: Sequence[str], env: Mapping[str, str], mask: set[int]) -> int:
    return os.posix_spawnp(
        command[0], list(command), dict(env), setsigmask=mask, setsigdef=_RESTORED
    )


def _not_started(name: str, error: OSError) -> NotStarted:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT and not os.path.exists(name):
        return NotStarted(f"{name}: command not found", NOT_FOUND)
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return NotStarted(f"{name}: could not be started: {reason}", NOT_STARTED)
    return NotStarted(f"{name}: cannot be run: {reason}", NOT_EXECUTABLE)


def wait(pid: int) -> int:
    """Wait for the child, passing signals on; its exit status, 128+N where signal N ended it.

    Needs `hold_signals`.
    """
    awaited = forwarded() | {int(signal.SIGCHLD)}
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        info = signal.sigwaitinfo(awaited)
        if info.si_signo != signal.SIGCHLD and _concerns(pid, info):
            _send(pid, info.si_signo)


def _concerns(pid: int, info: signal.struct_siginfo) -> bool:
    """Whether the child has to be told: the terminal tells its whole process group by itself."""
    from_process = info.si_code <= 0 and info.si_pid != os.getpid()
    return from_process or _group(pid) != os.getpgrp()


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _send(pid: int, number: int) -> None:
    with suppress(OSError):  # it has just ended, or changed its user
        os.kill(pid, number)
