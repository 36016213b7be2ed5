"""The least a job can cost: its operations and the bytes that must pass through memory, against what the machine does.

An ideal program is meant, not ours: prompts that completions share are computed once, rows that have ended cost
nothing, only completions pass through the head, and operations and traffic overlap within a phase.
"""

from __future__ import annotations

import dataclasses

from work import Geometry, Job, completion_lengths

FLOAT = 4  # bytes
ADAMW_PASSES = 7  # reads parameter, gradient and two moments; writes parameter and two moments


@dataclasses.dataclass(frozen=True)
class Phase:
    """Part of a job that must end before the next begins."""

    name: str
    operations: float
    bytes: float

    def floor(self, gflops: float, gbs: float) -> float:
        """Seconds."""
        return max(self.operations / gflops, self.bytes / gbs) / 1e9


def phases(job: Job, geometry: Geometry) -> list[Phase]:
    """What a job consists of. A multiplication and an addition are two operations; causal halves are counted as
    halves; norms, activations and the drawing of tokens are left out."""
    weights, head = geometry.block_weights, geometry.head_weights
    parameters = weights + head
    per_pair = 4 * geometry.layers * geometry.heads * geometry.head_size  # of a query with a key: score and value
    cached = 2 * geometry.layers * geometry.kv_heads * geometry.head_size * FLOAT  # bytes of a token in the cache
    lengths, prompt = completion_lengths(job), job.prompt_length
    prompts = job.prompts if job.shared else job.rows
    prompt_pairs, prompt_operations = prompts * prompt**2 / 2, 2 * weights * prompts * prompt
    if job.kind == "update":
        completion = job.length
        tokens = prompts * prompt + job.rows * completion
        pairs = prompt_pairs + job.rows * (completion * prompt + completion**2 / 2)
        forward = 2 * weights * tokens + 2 * head * job.rows * completion + per_pair * pairs
        return [
            Phase("forward, backward", 3 * forward, 3 * parameters * FLOAT),
            Phase("AdamW", 12 * parameters, ADAMW_PASSES * parameters * FLOAT),
        ]
    fed = (lengths - 1).sum()  # the first token comes from the prompt, the last is not read
    own_pairs = ((lengths - 1) * lengths / 2).sum()
    steps = lengths.max() - 1
    prefix_reads = (prompt * (lengths.max(axis=1) - 1)).sum() if job.shared else (prompt * (lengths - 1)).sum()
    return [
        Phase("prefill", prompt_operations + 2 * head * prompts + per_pair * prompt_pairs, parameters * FLOAT),
        Phase(
            "decode",
            float(2 * parameters * fed + per_pair * (prompt * fed + own_pairs)),
            float(steps * parameters * FLOAT + cached * (prefix_reads + own_pairs)),
        ),
    ]


def roofline(job: Job, geometry: Geometry, gflops: float, gbs: float, small_gbs: float) -> dict:
    """Totals of a job, and its floor in seconds. `floor_small` takes the weights of a decode step at `small_gbs`, the
    rate at which products of 16 rows really read them; None for jobs that have more rows than that."""
    parts = phases(job, geometry)
    floor_small = None
    if job.kind == "sample" and job.rows <= 16:
        floor_small = sum(part.floor(gflops, small_gbs if part.name == "decode" else gbs) for part in parts)
    return {
        "operations": sum(part.operations for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "floor_seconds": sum(part.floor(gflops, gbs) for part in parts),
        "floor_small_seconds": floor_small,
        "bound_by": {
            part.name: "operations" if part.operations / gflops > part.bytes / gbs else "memory" for part in parts
        },
    }
