"""Stop strings: a completion ends with the token that completes one of them, wherever token boundaries fall."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class StopStrings:
    """An automaton over tokens (Aho & Corasick 1975, over the bytes of each token): `table[state, token]` is the next
    state, `END` once a stop string is complete. A row starts in state 0."""

    strings: tuple[str, ...]
    table: np.ndarray  # i16[states, V]

    END = -1

    def __hash__(self) -> int:
        return hash(self.strings)


def make_stop_strings(strings: Sequence[str], token_bytes: Sequence[bytes]) -> StopStrings:
    """The automaton of `strings` for a vocabulary; `token_bytes[i]` are the bytes that token i stands for (none for a
    special token, which starts the search anew).

    Raises:
      ValueError: an empty stop string.
    """
    strings = tuple(strings)
    if not all(strings):
        raise ValueError(f"stop strings {list(strings)}: none may be empty")
    step, final = _byte_automaton([string.encode() for string in strings])
    longest = max(map(len, token_bytes), default=0)
    padded = np.full((len(token_bytes), longest), 256, np.int64)  # 256: no byte, the state stays
    for token, text in enumerate(token_bytes):
        padded[token, : len(text)] = np.frombuffer(text, np.uint8)
    step = np.concatenate([step, np.arange(len(step))[:, None]], axis=1)
    states = np.repeat(np.arange(len(step))[:, None], len(token_bytes), axis=1)
    ended = np.zeros(states.shape, bool)
    for column in padded.T:
        states = step[states, column[None]]
        ended |= final[states]
    states[:, np.array([not text for text in token_bytes], bool)] = 0
    return StopStrings(strings, np.where(ended, StopStrings.END, states).astype(np.int16))


def _byte_automaton(strings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(next state i64[states, 256], whether a string is complete bool[states]); state 0 is the beginning."""
    prefixes = [b"", *dict.fromkeys(string[:n] for string in strings for n in range(1, len(string) + 1))]
    number = {prefix: state for state, prefix in enumerate(prefixes)}
    step = np.zeros((len(prefixes), 256), np.int64)
    for state, prefix in enumerate(prefixes):
        for byte in range(256):
            tail = prefix + bytes([byte])
            step[state, byte] = next(number[tail[i:]] for i in range(len(tail) + 1) if tail[i:] in number)
    return step, np.array([any(prefix.endswith(string) for string in strings) for prefix in prefixes])
