"""What the machine can do: `python ceilings.py` answers the questions of `work.serve` with three rates, each the best
of some tries. Nothing is held between questions.

- `matmul_gflops`: a float32 product of two square matrices of 2,048
- `read_gbs`: the sum of 1 GiB of float32
- `small_gbs`: [16, 576] × [576, 1536] over 90 different weights, one after the other as in a decode step; the rate at
  which the weights are read
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from work import serve

SIZE, READ, ROWS, WEIGHTS, TRIES = 2048, 2**28, 16, (90, 576, 1536), 4


@jax.jit
def square(matrix):
    return matrix @ matrix


@jax.jit
def read(matrix, ones):
    return matrix @ ones


@jax.jit
def small(x, weights):
    for weight in weights:
        x = (x @ weight)[:, : x.shape[1]]
    return x


def best(function, *arguments) -> float:
    """Least seconds of a call; the first, which compiles, does not count."""
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(TRIES):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def set_up(job, name, lengths, geometry):
    count, inner, outer = WEIGHTS

    def call(seed: int) -> dict:
        matrix = jnp.full((SIZE, SIZE), 1e-3)
        gflops = 2 * SIZE**3 / best(square, matrix) / 1e9
        rows = 2**10
        long, ones = jnp.ones((rows, READ // rows)), jnp.ones(READ // rows)
        reading = 4 * READ / best(read, long, ones) / 1e9
        del long
        weights = [jnp.full((inner, outer), 1 / inner) + i for i in range(count)]
        products = 4 * np.prod(WEIGHTS) / best(small, jnp.ones((ROWS, inner)), weights) / 1e9
        return {"matmul_gflops": gflops, "read_gbs": reading, "small_gbs": float(products)}

    return call


if __name__ == "__main__":
    serve(set_up, f"jax {jax.__version__}")
