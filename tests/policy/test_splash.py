"""The kernel's attention is the plain path's, in values and gradients; its arithmetic runs here without a TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.policy.attention import attend_row, visible
from rlvr_jax.policy.splash import attend_splash


def rows(length=150, heads=4, kv_heads=2, size=128):
    """Two rows: one padded on both sides, as a prompt and its completion are, one full."""
    keys = jax.random.split(jax.random.key(0), 4)
    make = lambda key, heads: jax.random.normal(key, (2, length, heads, size))
    query, key, value = make(keys[0], heads), make(keys[1], kv_heads), make(keys[2], kv_heads)
    real = np.ones((2, length), np.int32)
    real[0, :7] = real[0, -30:] = 0
    return query, key, value, jnp.asarray(real), jax.random.normal(keys[3], query.shape)


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (16, 0.0), (0, 5.0)])
def test_kernel_is_the_plain_path(window, softcap):
    query, key, value, segments, slope = rows()
    positions = jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0)
    real = segments[:, :, None, None].astype(bool)
    plain = attend_row(visible(segments, positions, window), softcap)
    splash = attend_splash(segments, window, softcap, interpret=True)

    def both(attend):
        loss = lambda *x: (jnp.where(real, attend(*x), 0.0) * slope).sum()
        return jnp.where(real, attend(query, key, value), 0.0), *jax.grad(loss, (0, 1, 2))(query, key, value)

    for ours, theirs in zip(both(splash), both(plain)):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
