"""Computes one toy table in a process of its own; started by `experiments.pool`, never by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from experiments.launch import carry_out, survey
from experiments.pool import Interrupted
from experiments.table import load


def main(arguments: Sequence[str]) -> int:
    """Arguments: a file descriptor for events (one JSON object a line), the table, root, seeds ("" for all), command.

    Events: {"block": 1} after every block, {"say": text}. What is printed is shown only if the worker fails.
    """
    descriptor, name, root, seeds, command = arguments
    with os.fdopen(int(descriptor), "w", buffering=1) as events:
        send = lambda **event: print(json.dumps(event), file=events, flush=True)
        try:
            plan = survey(load(name), root, int(seeds) if seeds else None)
            carry_out(plan, command, say=lambda text: send(say=text), report=lambda: send(block=1))
        except (Interrupted, KeyboardInterrupt):
            return 130
        except (ValueError, OSError, ImportError) as error:
            print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
