"""What every task keeps: disjoint splits without give-aways, a fixed order, prompts that render exactly."""

import itertools
import re

import pytest

from rlvr_jax.tasks import TASKS, make_task
from rlvr_jax.tokenizer import CHATML, ByteTokenizer

TEXTS = [
    "compare",
    "addsub10",
    "arithmetic",
    "arithmetic(digits=2)",
    "arithmetic(largest=4)",
    "compare(held_out=50)",
]
SIZES = {
    "compare": (7808, 200),
    "addsub10": (136, 50),
    "arithmetic": (80, 20),
    "arithmetic(digits=2)": (9800, 200),
    "arithmetic(largest=4)": (20, 5),
    "compare(held_out=50)": (7958, 50),
}


class ChatTokenizer(ByteTokenizer):
    """Bytes with a template like SmolLM2's: it writes a system turn that nobody asked for."""

    chat_template = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nHello<|im_end|>\n{% endif %}" + CHATML


def numbers(problem):
    return tuple(sorted(re.findall(r"\d+", problem.prompt))), "-" in problem.prompt


@pytest.mark.parametrize("text", TEXTS)
def test_splits(text):
    task = make_task(text)
    train, held_out = task.problems("train"), task.problems("held_out")
    assert (len(train), len(held_out)) == SIZES[text]
    ids = [problem.problem_id for problem in train + held_out]
    assert len(set(ids)) == len(ids) and all(0 <= i < task.size for i in ids)
    # neither the same question nor its swap may be in both, nor the example in any
    assert not {numbers(p) for p in train} & {numbers(p) for p in held_out}
    if task.example:
        assert task.example[0] not in {problem.prompt for problem in train + held_out}


@pytest.mark.parametrize("text", TEXTS)
def test_order_is_the_same_in_every_process_and_copies_are_the_callers(text):
    task = make_task(text)
    first = task.problems("held_out")
    first.clear()
    assert task.problems("held_out") == make_task(text).problems("held_out")


def test_order_is_the_same_on_every_machine():
    assert [p.prompt for p in make_task("compare").problems("held_out")[:2]] == [
        "Which number is larger, 85 or 36?",
        "Which number is larger, 74 or 61?",
    ]
    assert [p.problem_id for p in make_task("compare").problems("train")[:3]] == [93, 3592, 482]


def test_a_problem_keeps_its_id_when_the_split_changes():
    ids = [
        {p.prompt: p.problem_id for split in ("train", "held_out") for p in make_task(text).problems(split)}
        for text in ("compare", "compare(held_out=50)")
    ]
    assert ids[0] == ids[1] and len(ids[0]) == 8008


@pytest.mark.parametrize("text", TEXTS)
def test_solutions_are_right_and_their_neighbours_wrong(text):
    task = make_task(text)
    for problem in itertools.islice(task.problems("train"), 200):
        right = task.solution(problem)
        assert task.verify(problem.answer, right, True) == (1.0, problem.answer, "correct")
        assert task.verify(problem.answer, right, False).reason == "not ended"
        assert task.verify(problem.answer, right + "1", True) == (
            0.0,
            problem.answer + "1",
            f"≠ {problem.answer}",
        )


def test_answers_are_right():
    for problem in make_task("compare").problems("train"):
        a, b = map(int, re.findall(r"\d+", problem.prompt))
        assert problem.answer == str(max(a, b)) and problem.difficulty == (a // 10 == b // 10)
    for problem in make_task("addsub10").problems("train"):
        a, sign, b = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", problem.prompt).groups()
        assert problem.answer == str(int(a) + int(b) if sign == "+" else int(a) - int(b))
    for problem in make_task("arithmetic(digits=2)").problems("held_out"):
        a, b = map(int, re.findall(r"\d+", problem.prompt))
        assert problem.answer == str(a + b)


def test_difficulty_of_a_sum_counts_digits_and_carries():
    by_prompt = {p.prompt: p.difficulty for p in make_task("arithmetic(digits=2, held_out=1)").problems("train")}
    # 12: two digits; 7+8 = 15: two digits, one carry; 58+67 = 125: three digits, two carries
    assert [by_prompt[p] for p in ("10+2=", "7+8=", "58+67=", "95+14=")] == [2, 3, 5, 4]


def test_prompt_text_with_a_chat_template_has_no_system_turn():
    task = make_task("compare")
    problem = task.problems("train")[1]
    assert task.render(problem, ChatTokenizer()) == (
        "<|im_start|>user\nWhich number is larger, 48 or 11?<|im_end|>\n<|im_start|>assistant\n"
        "Answer: 48<|im_end|>\n<|im_start|>user\nWhich number is larger, 50 or 42?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    addsub10 = make_task("addsub10")
    assert addsub10.render(addsub10.problems("train")[0], ChatTokenizer()).startswith(
        "<|im_start|>user\nWhat is 9 - 7?<|im_end|>\n<|im_start|>assistant\n"
        "Answer: 2<|im_end|>\n<|im_start|>user\nWhat is "
    )


def test_prompt_text_without_a_chat_template():
    task = make_task("compare")
    assert task.render(task.problems("train")[1], ByteTokenizer()) == (
        "Which number is larger, 48 or 11?\nAnswer: 48\nWhich number is larger, 50 or 42?\n"
    )
    arithmetic = make_task("arithmetic")
    problem = arithmetic.problems("train")[0]
    assert arithmetic.render(problem, ByteTokenizer()) == problem.prompt == "6+9="


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("compares", "task='compares': unknown option 'compares'. Did you mean 'compare'"),
        ("compare(heldout=3)", "compare has no keyword 'heldout'. Did you mean 'held_out'"),
        ("compare(held_out=0)", "task=compare: held_out=0; choose a whole number in 1 … 8007"),
        ("compare(held_out=2.5)", "held_out=2.5; choose a whole number"),
        ("compare(held_out=201)", "held_out=201 .* choose 200"),
        ("addsub10(held_out=186)", "choose a whole number in 1 … 185"),
        ("arithmetic(digits=3)", r"digits=3; choose from \[1, 2\]"),
        ("arithmetic(largest=0)", "largest=0; choose a whole number in 1 … 199"),
    ],
)
def test_bad_tasks(text, says):
    with pytest.raises(ValueError, match=says):
        make_task(text)


def test_bad_split():
    with pytest.raises(ValueError, match=r"split='test': unknown.*\['train', 'held_out'\]"):
        make_task("compare").problems("test")


def test_names():
    assert {"addsub10", "arithmetic", "compare"} <= set(TASKS.names())
    assert all(make_task(name).name == name for name in ("addsub10", "arithmetic", "compare"))
