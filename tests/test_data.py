"""Prompts: each problem once an epoch, a position that survives a restart, nothing cut in silence."""

import itertools
import json

import numpy as np
import pytest
import tiny

from rlvr_jax.data import EncodedProblem, PromptStream, encode_problems, mixture_of, to_batch_of_prompts
from rlvr_jax.tasks import Problem, make_task
from rlvr_jax.tokenizer import make_tokenizer

PAD = 9


def stream(problems=40, prompts_per_step=4, seed=0) -> PromptStream:
    # ids that are not positions, so that the two cannot be confused
    encoded = [EncodedProblem(Problem(100 + i, f"{i}", "0"), f"{i}", (i, i)) for i in range(problems)]
    return PromptStream(encoded, prompts_per_step=prompts_per_step, prompt_length=3, pad_id=PAD, seed=seed)


def ids(stream, steps):
    return [batch.prompts.prompt_id.tolist() for batch in itertools.islice(stream, steps)]


def flat(steps):
    return list(itertools.chain.from_iterable(steps))


def test_every_problem_once_an_epoch():
    steps = ids(stream(), 10)
    assert [len(step) for step in steps] == [4] * 10
    assert sorted(flat(steps)) == list(range(100, 140))
    assert flat(steps) != list(range(100, 140))


@pytest.mark.parametrize("through_json", [False, True])
def test_a_restored_stream_goes_on_where_it_was(through_json):
    whole = ids(stream(), 10)
    first = stream()
    assert ids(first, 3) == whole[:3]
    state = first.get_state()
    if through_json:
        state = json.loads(json.dumps(state))
    ids(first, 2)  # what the old process still draws does not move the state that was saved
    second = stream()
    second.set_state(state)
    assert ids(second, 7) == whole[3:]


def test_position_before_the_first_batch_and_after_an_epoch():
    whole = ids(stream(), 23)
    for taken in (0, 10, 12):
        first, second = stream(), stream()
        ids(first, taken)
        second.set_state(first.get_state())
        assert ids(second, 23 - taken) == whole[taken:]


def test_another_seed_is_another_order():
    assert ids(stream(seed=0), 10) == ids(stream(seed=0), 10)
    assert ids(stream(seed=0), 10) != ids(stream(seed=1), 10)


def test_each_epoch_is_shuffled_anew():
    steps = ids(stream(), 20)
    first, second = flat(steps[:10]), flat(steps[10:])
    assert sorted(first) == sorted(second) and first != second


def test_an_epoch_that_steps_do_not_divide_loses_nothing():
    steps = ids(stream(problems=10, prompts_per_step=4), 5)  # 20 places: two epochs
    assert sorted(flat(steps)) == sorted([*range(100, 110)] * 2)


def test_more_prompts_than_problems():
    assert sorted(ids(stream(4, 4), 1)[0]) == [100, 101, 102, 103]
    with pytest.raises(ValueError, match="prompts_per_step=5 is more than the 4 problems"):
        stream(4, 5)


# --- prompts longer than the limit ---

TOKENIZER = make_tokenizer("bytes")


def encode(lengths, long_prompts, limit=16):
    task = tiny.FixedTask(lengths)
    return encode_problems(task, task.problems("train"), TOKENIZER, limit, long_prompts)


def test_long_prompts_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"prompt_length=16: 2 of 4 prompts .* longest 40 tokens .* raise it to 40"):
        encode([15, 16, 17, 40], "refuse")
    encoded, dropped = encode([15, 16], "refuse")
    assert [len(item.ids) for item in encoded] == [15, 16] and dropped == 0


def test_long_prompts_are_dropped_and_counted_never_cut():
    encoded, dropped = encode([15, 16, 17, 40], "drop")
    assert dropped == 2
    assert [item.ids for item in encoded] == [tuple(b"a" * 15), tuple(b"b" * 16)]
    assert [item.problem.problem_id for item in encoded] == [0, 1]
    batch = to_batch_of_prompts(encoded, 16, TOKENIZER.pad_id)
    assert batch.prompts.tokens.shape == (2, 16)
    with pytest.raises(ValueError, match="2 of 2 prompts are longer"):
        encode([17, 40], "drop")  # none is left


def test_a_prompt_is_never_cut_to_fit_a_batch():
    item = EncodedProblem(Problem(0, "x", "0"), "x", tuple(range(17)))
    with pytest.raises(ValueError, match="prompt 0 has 17 tokens, more than the limit of 16"):
        to_batch_of_prompts([item], 16, 0)


def test_prompts_are_padded_at_their_left():
    # the pad id is also a word of a prompt: the mask knows which is which
    items = [
        EncodedProblem(Problem(7, "p", "0"), "p", (5, PAD)),
        EncodedProblem(Problem(3, "q", "0"), "q", (1, 2, 3, 4)),
    ]
    batch = to_batch_of_prompts(items, 4, PAD)
    assert batch.prompts.tokens.tolist() == [[PAD, PAD, 5, PAD], [1, 2, 3, 4]]
    assert batch.prompts.mask.astype(int).tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch.prompts.prompt_id.tolist() == [7, 3]
    assert batch.prompts.tokens.dtype == np.int32 and batch.prompts.mask.dtype == bool
    assert batch.texts == ("p", "q") and batch.problems == tuple(item.problem for item in items)


def test_sets_with_weights_are_mixed_by_them():
    """Shares of 3 to 1 whatever the sizes, and the position goes on exactly."""
    task = make_task("mixed(tasks=['compare', 'addsub10'], weights=[3, 1])")
    places = task.sets()
    problems = task.problems("train")
    encoded = [EncodedProblem(problem, problem.prompt, (1, 2)) for problem in problems]
    order = lambda: mixture_of(task, encoded, seed=1)
    stream = lambda: PromptStream(encoded, prompts_per_step=8, prompt_length=2, pad_id=0, seed=1, order=order())
    whole = stream()
    batches = [next(whole) for _ in range(6)]
    first = {problems[place].problem_id for place in places["0 compare"]}
    shares = [sum(problem.problem_id in first for problem in batch.problems) for batch in batches]
    assert shares == [6] * 6
    begun, resumed = stream(), stream()
    for _ in range(3):
        next(begun)
    resumed.set_state(json.loads(json.dumps(begun.get_state())))
    again = [[problem.problem_id for problem in next(resumed).problems] for _ in range(3)]
    assert again == [[problem.problem_id for problem in batch.problems] for batch in batches[3:]]
    assert mixture_of(make_task("mixed(tasks=['compare', 'addsub10'])"), encoded, seed=1) is None
