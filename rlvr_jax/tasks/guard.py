"""A process that grades does not write, start, send or delete: the built-in verifiers never need to.

Some scorers evaluate expressions. This is a second wall behind the refusal of what looks like code, for Python's own
doors (audit hooks); it is no sandbox against native code.
"""

from __future__ import annotations

import os
import sys

_DOORS = {
    "os": "system exec posix_spawn spawn fork forkpty startfile kill killpg remove rename rmdir mkdir chmod chown link "
    "symlink truncate putenv unsetenv chdir setxattr removexattr utime",
    "shutil": "copyfile move rmtree copytree",
    "socket": "__new__ connect bind sendto getaddrinfo",
    "ctypes": "dlopen dlsym",
    "resource": "setrlimit prlimit",
    "subprocess": "Popen",
    "pty": "spawn",
    "signal": "pthread_kill",
    "urllib": "Request",
    "webbrowser": "open",
    "sqlite3": "connect",
}
_REFUSED = frozenset(f"{module}.{name}" for module, names in _DOORS.items() for name in names.split())
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(event: str, arguments: tuple) -> None:
    if event in _REFUSED:
        raise PermissionError(f"a verifier may not call {event}")
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        raise PermissionError("a verifier may not write files")


def refuse_side_effects() -> None:
    """From here on, for the whole life of this process."""
    sys.dont_write_bytecode = True  # what is imported later leaves no cache
    sys.addaudithook(_hook)
