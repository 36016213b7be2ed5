"""What XLA compiles: counted, so that a hidden recompilation shows in the metrics of the step that paid for it, and
explained by the argument that was another."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

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


class CompilationWarning(UserWarning):
    """A function was compiled again; the message names it and the arguments that changed."""


class Watched:
    """A jitted function that warns when it is compiled again, and says which argument's shape, dtype, sharding, static
    value or structure is another than in the call most like it.

    Args:
      name: of the function, in the warning.
      jitted: what `jax.jit` returned; called, and otherwise reached, as before.
      expected: patterns of the names of arguments and leaves ("row_slots", "batch/tokens") that may change; a
        compilation where only these did is not worth a warning.
      say: takes the message; a CompilationWarning by default.

    A call that compiles nothing costs one comparison of two integers.
    """

    def __init__(
        self,
        name: str,
        jitted: Callable,
        expected: Sequence[str] = (),
        say: Callable[[str], Any] | None = None,
    ):
        self.name, self._jitted, self._expected = name, jitted, tuple(expected)
        self._say = say or (lambda text: warnings.warn(text, CompilationWarning, stacklevel=4))
        self._seen: list[dict[str, str]] = []

    def __call__(self, *args, **kwargs):
        before = self._jitted._cache_size()
        result = self._jitted(*args, **kwargs)
        if self._jitted._cache_size() > before:
            self._explain(args, kwargs)
        return result

    def __getattr__(self, name: str):
        return getattr(self._jitted, name)

    def _explain(self, args: tuple, kwargs: dict) -> None:
        now = signature(self._jitted, args, kwargs)
        changes = min((differences(then, now) for then in self._seen), key=len, default=None)
        self._seen.append(now)
        if changes is None:
            return
        surprising = [text for name, text in changes if not any(re.search(p, name) for p in self._expected)]
        if surprising or not changes:
            shown = "; ".join(surprising[:4]) or "no argument differs, so a setting of jax does"
            more = f"; and {len(surprising) - 4} more" if len(surprising) > 4 else ""
            self._say(f"{self.name} was compiled again (program {len(self._seen)}): {shown}{more}")


def signature(function: Callable, args: tuple, kwargs: dict) -> dict[str, str]:
    """What a compilation depends on, as text by the name of each argument's leaves: "f32[8,16]", with its sharding
    where it was placed by hand; of anything that is no array its value."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a function that does not tell its arguments
        bound = {"args": args, "kwargs": kwargs}
    leaves = jax.tree_util.tree_leaves_with_path(dict(bound), is_leaf=lambda x: x is None)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _describe(leaf) for path, leaf in leaves}


def _describe(leaf: Any) -> str:
    if leaf is None or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return repr(leaf)
    weak = ", weakly typed" if getattr(leaf, "weak_type", False) else ""
    placed = f" on {leaf.sharding}" if getattr(leaf, "committed", False) else ""
    return f"{leaf.dtype}{list(leaf.shape)}{weak}{placed}"


def differences(then: dict[str, str], now: dict[str, str]) -> list[tuple[str, str]]:
    """(name, "name: old → new") of every leaf that is another."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return [(name, f"{name}: {then.get(name, 'nothing')} → {now.get(name, 'nothing')}") for name in names]
