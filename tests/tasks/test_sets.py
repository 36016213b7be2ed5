"""Problem sets in the forms they are published in, on rows made up here."""

import json

import pytest

from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.grade import make_check, unusable
from rlvr_jax.tokenizer import ByteTokenizer


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def gsm8k(tmp_path):
    def rows(count, start):
        return [
            {"question": f"{i} and 1,000?", "answer": f"{i} + 1000 = <<{i}+1000={i + 1000}>>\nDone.\n#### {i + 1000:,}"}
            for i in range(start, start + count)
        ]

    write(tmp_path / "train.jsonl", rows(4, 1))
    write(tmp_path / "test.jsonl", rows(2, 10))
    return str(tmp_path)


def test_gsm8k(gsm8k):
    task = make_task(f"gsm8k(path={gsm8k!r})")
    first = task.problems("train")[0]
    assert (first.prompt, first.answer, first.difficulty) == ("1 and 1,000?", "1,001", 2.0)
    assert task.render(first, ByteTokenizer()).endswith("\nThink step by step, then put the final answer in \\boxed{}.")
    assert task.verify("1,001", "So \\boxed{1001}.", True).outcome == 1.0
    assert task.verify("1,001", "So \\boxed{1001}.", False) == (0.0, "1001", "not ended")
    assert task.report() == ["gsm8k: 4 problems to train on, 2 held out"]
    plain = make_task(f"gsm8k(path={gsm8k!r}, instruction='', example='2 and 2? → 4')")
    assert [m["content"] for m in plain.messages(first)] == ["2 and 2?", "\\boxed{4}", "1 and 1,000?"]
    write(__import__("pathlib").Path(gsm8k) / "test.jsonl", [{"question": "?", "answer": "no mark 5"}])
    with pytest.raises(ValueError, match="test.jsonl, line 1: the answer has no '#### number'"):
        make_task(f"gsm8k(path={gsm8k!r})")
    with pytest.raises(FileNotFoundError, match="absent/train.jsonl does not exist"):
        make_task("gsm8k(path='absent')")


def test_svamp(tmp_path):
    rows = [
        {"Body": f"He has {i} pens", "Question": "How many?", "Answer": float(i), "Equation": f"( {i}.0 - 0.0 )"}
        for i in range(10)
    ]
    task = make_task(f"svamp(path={write(tmp_path / 'a.jsonl', rows)!r}, held_out=3)")
    assert (len(task.problems("train")), task.held_out) == (7, 3)
    problem = task.problems("held_out")[0]
    assert problem.prompt == f"He has {problem.answer} pens. How many?" and problem.difficulty == 1.0
    assert {p.answer for split in ("train", "held_out") for p in task.problems(split)} == set(map(str, range(10)))


def test_math_files_and_folders(tmp_path):
    rows = [
        {"problem": "Half of 1?", "solution": r"It is \boxed{\frac{1}{2}}.", "level": "Level 2", "type": "Algebra"},
        {"problem": "Unknown level?", "answer": "(1, 2)", "solution": "", "level": "Level ?"},
    ]
    held_out = [{"problem": "Third of 1?", "solution": r"\boxed{\dfrac13}", "level": "Level 5"}]
    write(tmp_path / "a" / "train.jsonl", rows)
    write(tmp_path / "a" / "test.jsonl", held_out)
    for split, split_rows in (("train", rows), ("test", held_out)):
        for i, row in enumerate(split_rows):
            path = tmp_path / "b" / split / "algebra" / f"{i}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row))
    made = [make_task(f"math(path={str(tmp_path / folder)!r})") for folder in "ab"]
    for task in made:
        assert [(p.answer, p.difficulty) for p in task.problems("train")] == [(r"\frac{1}{2}", 2.0), ("(1, 2)", 0.0)]
        assert [(p.answer, p.difficulty) for p in task.problems("held_out")] == [(r"\dfrac13", 5.0)]
        assert task.verify(r"\dfrac13", r"\boxed{1/3}", True).outcome == 1.0
    assert made[1].where(made[1].problems("train")[0]).endswith("train/algebra/0.json")
    one = make_task(f"math(train={str(tmp_path / 'a' / 'train.jsonl')!r}, held_out=1)")
    assert one.size == 2
    write(tmp_path / "a" / "test.jsonl", [{"problem": "?", "solution": "It is 3."}])
    for text, says in [
        (f"math(path={str(tmp_path / 'a')!r})", "line 1: the solution has no .*boxed"),
        ("math()", "path='', train=''; give one of the two"),
        ("math(train='x')", "held_out=''; give a file, a folder or a number"),
    ]:
        with pytest.raises(ValueError, match=says):
            make_task(text)
    with pytest.raises(FileNotFoundError, match=r"none of \['train.jsonl', 'train.json', 'train'\] there"):
        make_task(f"math(path={str(tmp_path)!r})")


def test_multiple_choice_in_three_forms(tmp_path):
    aqua = {"question": "1+1?", "options": ["A)1", "B)2", "C)None of these"], "correct": "B", "rationale": "."}
    sat = {"passage": "Let x be 4.", "question": "x + 1?", "options": ["(A)4", "(B)$5$"], "label": "B"}
    arc = {"question": "Which?", "choices": ["ice", "fire", "a dog"], "answer": 2}
    train = write(tmp_path / "train.jsonl", [aqua, sat])
    task = make_task(f"multiple_choice(train={train!r}, held_out={write(tmp_path / 'h.jsonl', [arc])!r})")
    (first, second), (third,) = task.problems("train"), task.problems("held_out")
    assert first.prompt == "1+1?\nA) 1\nB) 2\nC) None of these" and first.answer == "B\nA) 1\nB) 2\nC) None of these"
    assert second.prompt.startswith("Let x be 4.\nx + 1?\nA) 4")
    assert third.answer.startswith("C\n")
    for problem, right, wrong in [
        (first, ["\\boxed{B}", "The answer is 2."], ["\\boxed{C}", "The answer is 1.", "B or C", "\\boxed{D}"]),
        (second, ["<answer>B</answer>", "The answer is $5$."], ["A"]),
        (third, ["c", "Final answer: a dog"], ["The answer is a cat", "I like a dog or ice"]),
    ]:
        assert [task.verify(problem.answer, text, True).outcome for text in right] == [1.0] * len(right)
        assert [task.verify(problem.answer, text, True).outcome for text in wrong] == [0.0] * len(wrong)
        assert task.verify(problem.answer, task.solution(problem), True).outcome == 1.0
    for row, says in [
        ({"question": "?", "options": ["A)1", "B)2"]}, "none of the fields"),
        ({"question": "?", "options": ["A)1", "B)2"], "correct": "E"}, "'E' is none of AB"),
        ({"question": "?", "options": ["A)1", "B)2"], "answer": 2}, "'2' is none of AB"),
        ({"question": "?", "correct": "A"}, "not two to ten texts: None"),
    ]:
        bad = write(tmp_path / "bad.jsonl", [row])
        with pytest.raises(ValueError, match=says):
            make_task(f"multiple_choice(train={bad!r}, held_out={train!r})")


def test_two_options_with_one_text_are_told_apart_by_the_letter():
    answer = "C\nA) 8.75\nB) 9\nC) 8.75"
    check = make_check("choice")
    assert check(answer, "The answer is (C) 8.75").outcome == 1.0
    assert check(answer, "The answer is (A) 8.75").outcome == 0.0
    assert check(answer, "The answer is (B) 8.75").reason.startswith("ambiguous")
    assert check(answer, "The answer is 8.75").outcome == 0.0


UNUSABLE = {
    "math": ["", r"\frac{1}{", "   "],
    "numeric": ["x", "", "1/0", "(1,2)", "see the diagram"],
    "numeric(relative=0.1)": ["y"],
    "answer_line": ["forty", "1/2"],
    "bare_number": ["x"],
    "choice": ["", "Z", "C\nA) 1\nB) 2"],
    "exact": ["", " \n "],
    "f1": [""],
}


@pytest.mark.parametrize("verifier", UNUSABLE)
def test_an_unusable_gold_is_told_at_load_time_and_never_right(verifier):
    """Fault A4, in its whole kind."""
    check = make_check(verifier)
    for gold in UNUSABLE[verifier]:
        assert unusable(verifier, gold) is not None
        for completion in ("7", r"\boxed{7}", "Answer: 7", gold, rf"\boxed{{{gold}}}"):
            try:
                assert check(gold, completion).outcome != 1.0
            except ValueError as error:  # the strict verifiers refuse such an answer aloud
                assert "needs a number" in str(error)
    good = {"choice": "B\nA) 1\nB) 2", "exact": "x\ny", "f1": "x"}.get(verifier, "7")
    assert unusable(verifier, good) is None


def test_several_tasks_as_one(gsm8k, tmp_path):
    """Each problem is asked and graded by its own task; ids do not collide; the sets are those of a mixture."""
    rows = [{"question": f"{i}?", "options": ["A) x", "B) y"], "correct": "B"} for i in range(3)]
    choice = f"multiple_choice(train={write(tmp_path / 'c.jsonl', rows)!r}, held_out=1)"
    members = [f"gsm8k(path={gsm8k!r})", choice, "compare"]
    task = make_task(f"mixed(tasks={members!r}, weights=[2, 1, 1])", {"repeats": "drop"})
    problems = task.problems("train") + task.problems("held_out")
    assert len({p.problem_id for p in problems}) == len(problems) and task.held_out == 2 + 1 + 200
    for problem in (problems[0], problems[4], problems[-1]):
        assert task.verify(problem.answer, task.solution(problem), True).outcome == 1.0
        graded = make_check(task.grader)(problem.answer, task.solution(problem))
        assert graded.outcome == 1.0
    assert problems[0].answer == "0|1,001" and problems[4].answer.startswith("1|B\nA) x")
    assert "\\boxed{}" in task.messages(problems[0])[-1]["content"] and len(task.messages(problems[-1])) == 3
    assert task.where(problems[0]).endswith("train.jsonl, line 1") and len(task.report()) == 2
    sets = task.sets()
    assert list(sets) == ["0 gsm8k", "1 multiple_choice", "2 compare"]
    assert [len(places) for places in sets.values()] == [4, 2, 7808] and sets["1 multiple_choice"] == [4, 5]
    for text, says in [
        ("mixed(tasks=['compare'])", "give a list of two or more tasks"),
        ("mixed(tasks=['compare', 'addsub10'], weights=[1])", "give one above 0 for each of the 2 tasks"),
        ("mixed(tasks=['compare', 'nothing'])", "unknown option 'nothing'"),
    ]:
        with pytest.raises(ValueError, match=says):
            make_task(text)
