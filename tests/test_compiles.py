"""A further compilation is reported with its cause, and only then."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rlvr_jax.compiles import CompilationWarning, CompileCounter, Watched


def jitted():
    """A function of its own: jits of one function share what they have compiled."""

    def scaled(batch, factor, *, row_slots=0):
        return batch["tokens"] * factor + row_slots

    return jax.jit(scaled, static_argnames="row_slots")


def watched(**options):
    said = []
    return Watched("update", jitted(), say=said.append, **options), said


def tokens(*shape, dtype=jnp.float32):
    return {"tokens": jnp.ones(shape, dtype)}


def test_the_first_compilation_and_repeated_calls_say_nothing():
    function, said = watched()
    for _ in range(3):
        assert function(tokens(2, 3), jnp.ones(())).shape == (2, 3)
    assert not said


@pytest.mark.parametrize(
    ("batch", "options", "cause"),
    [
        (tokens(4, 3), {}, "batch/tokens: float32[2, 3] → float32[4, 3]"),
        (tokens(2, 3, dtype=jnp.int32), {}, "batch/tokens: float32[2, 3] → int32[2, 3]"),
        (tokens(2, 3), {"row_slots": 8}, "row_slots: nothing → 8"),
        ({**tokens(2, 3), "more": jnp.ones(1)}, {}, "batch/more: nothing → float32[1]"),
    ],
)
def test_the_argument_that_changed_is_named(batch, options, cause):
    function, said = watched()
    function(tokens(2, 3), jnp.ones(()))
    function(batch, jnp.ones(()), **options)
    assert said == [f"update was compiled again (program 2): {cause}"]
    function(batch, jnp.ones(()), **options)
    function(tokens(2, 3), jnp.ones(()))  # known already
    assert len(said) == 1


def test_placement_and_weak_types_are_named():
    function, said = watched()
    function(tokens(2, 3), jnp.ones(()))
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    function({"tokens": jax.device_put(jnp.ones((2, 3)), NamedSharding(mesh, PartitionSpec("data")))}, jnp.ones(()))
    assert "batch/tokens: float32[2, 3] → float32[2, 3] on NamedSharding(" in said[0]
    function(tokens(2, 3), 2.0)
    assert said[1].endswith("factor: float32[] → 2.0")


def test_the_nearest_call_before_is_compared_with():
    function, said = watched()
    function(tokens(2, 3), jnp.ones(()))
    function(tokens(4, 3), jnp.ones(()), row_slots=1)
    function(tokens(4, 3), jnp.ones(()), row_slots=2)
    assert said[1] == "update was compiled again (program 3): row_slots: 1 → 2"


def test_expected_changes_are_silent_unless_another_comes_with_them():
    function, said = watched(expected=("row_slots", "batch/tokens"))
    function(tokens(2, 3), jnp.ones(()), row_slots=1)
    function(tokens(4, 3), jnp.ones(()), row_slots=2)
    assert not said
    function(tokens(4, 3), jnp.ones((), jnp.int32), row_slots=3)
    assert said == ["update was compiled again (program 3): factor: float32[] → int32[]"]


def test_a_donated_argument_can_still_be_described():
    said = []
    function = Watched("update", jax.jit(lambda x: x + 1, donate_argnums=0), say=said.append)
    function(jnp.ones(3))
    function(jnp.ones(4))
    assert said == ["update was compiled again (program 2): x: float32[3] → float32[4]"]


def test_by_default_it_warns_and_the_counter_counts():
    function = Watched("score", jitted())
    batches, factor = [tokens(2, 5), tokens(3, 5)], jnp.ones(())
    with CompileCounter() as compiles, warnings.catch_warnings():
        warnings.simplefilter("error", CompilationWarning)
        function(batches[0], factor)
        assert compiles.take()[0] == 1
        with pytest.raises(CompilationWarning, match="score was compiled again"):
            function(batches[1], factor)
        assert compiles.take()[0] == 1
    assert function.lower(batches[0], factor).compile() is not None  # the rest of a jitted function is there
