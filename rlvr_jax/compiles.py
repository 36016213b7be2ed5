"""Counts what XLA compiles, so that a hidden recompilation shows in the metrics of the step that paid for it."""

from __future__ import annotations

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """`with CompileCounter() as compiles:` … `compiles.take()` → (programs, seconds) compiled since the last take."""

    def __init__(self):
        self._count, self._seconds = 0, 0.0

    def _listen(self, event: str, duration: float, **_) -> None:
        if event == _EVENT:
            self._count += 1
            self._seconds += duration

    def __enter__(self) -> CompileCounter:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def take(self) -> tuple[int, float]:
        taken = self._count, self._seconds
        self._count, self._seconds = 0, 0.0
        return taken
