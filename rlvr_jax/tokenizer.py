"""Text to token ids and back, and chat turns to text.

One contract (`Tokenizer`), two kinds: bytes, which need no file, and a byte-pair vocabulary read from a
`tokenizer.json` or from what a GGUF file carries.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import numpy as np
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlvr_jax.registry import parse_call

# ChatML turns and nothing else: no start token, no system turn that was not asked for.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARITHMETIC_ALPHABET = "0123456789+-="


class Tokenizer:
    """What every kind offers."""

    name: str  # for reports
    vocabulary_size: int  # ids are 0 … vocabulary_size − 1
    end_ids: tuple[int, ...]  # sampling one of them ends a completion
    pad_id: int  # fills unused positions; may equal an end id
    bos_id: int | None = None  # the start token
    add_bos: bool = False  # every sequence begins with it
    chat_template: str | None = None  # Jinja source

    def encode(self, text: str, start: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written in it (<|im_end|>) become their ids.

        Where `add_bos` is set, exactly one start token leads the ids, whether or not the text (of a template)
        has it already. `start=False` is for text that continues a sequence.
        """
        ids = self._encode(text)
        missing = start and self.add_bos and ids[:1] != [self.bos_id]
        return [self.bos_id, *ids] if missing else ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; special tokens (pad, end, turn marks) are left out unless asked for."""
        return self._decode([int(i) for i in ids], skip_special)

    def token_bytes(self) -> list[bytes]:
        """The bytes that each id stands for in a text; none for special tokens, and for ids without a token."""
        return self._token_bytes()

    def apply_chat_template(
        self, messages: Sequence[Mapping], add_generation_prompt: bool = True, default_system: bool = True
    ) -> str:
        """The text of a conversation.

        Args:
          messages: each {"role": "system" | "user" | "assistant", "content": str}.
          add_generation_prompt: end with the header of the assistant's turn.
          default_system: keep the system turn that some templates write unasked.

        Raises:
          ValueError: no template, a message without role or content, or the template refused the messages.
        """
        if self.chat_template is None:
            raise ValueError(f"tokenizer {self.name!r} has no chat template; pass the text itself to encode")
        for i, message in enumerate(messages):
            if not {"role", "content"} <= set(message):
                raise ValueError(f"messages[{i}] has keys {sorted(message)}; it needs 'role' and 'content'")
        source = self.chat_template if default_system or not self._writes_system else CHATML
        return self._render(source, messages, add_generation_prompt)

    @functools.cached_property
    def _writes_system(self) -> bool:
        return "<|im_start|>system" in self._render(self.chat_template, [{"role": "user", "content": "x"}], True)

    def _render(self, source: str, messages: Sequence[Mapping], add_generation_prompt: bool) -> str:
        try:
            return _template(source).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token="" if self.bos_id is None else self.decode([self.bos_id], skip_special=False),
                eos_token=self.decode(self.end_ids[:1], skip_special=False),
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(f"chat template of tokenizer {self.name!r}: {error}") from None


@functools.lru_cache(maxsize=16)
def _template(source: str) -> jinja2.Template:
    """Compiled in Jinja's sandbox: templates come out of model files, which strangers wrote."""

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes 0–255, pad 256, end 257; or only the bytes of `alphabet`, in its order, then pad, then end.

    The alphabet is for a policy trained from scratch, which finds its first rewards by chance: the two right
    ids of "8", end come up once in 66,000 completions of all bytes, once in 225 of `ARITHMETIC_ALPHABET`.
    """

    def __init__(self, alphabet: str | None = None):
        if not isinstance(alphabet, str | None):
            raise ValueError(f"tokenizer=bytes: alphabet={alphabet!r}; expected text, such as '0123456789'")
        symbols = bytes(range(256)) if alphabet is None else alphabet.encode("utf-8")
        if not symbols or len(set(symbols)) != len(symbols):
            raise ValueError(f"tokenizer=bytes: alphabet={alphabet!r}; give at least one byte, and each once")
        self.name = "bytes" if alphabet is None else f"bytes(alphabet={alphabet!r})"
        self.symbols = [bytes([symbol]) for symbol in symbols]
        self.ids = {symbol: i for i, symbol in enumerate(symbols)}
        self.vocabulary_size = len(symbols) + 2
        self.pad_id, self.end_ids = len(symbols), (len(symbols) + 1,)

    def _token_bytes(self) -> list[bytes]:
        return [*self.symbols, b"", b""]

    def _encode(self, text: str) -> list[int]:
        try:
            return [self.ids[byte] for byte in text.encode("utf-8")]
        except KeyError:
            raise ValueError(f"text={text!r} has bytes that are not in tokenizer={self.name}") from None

    def _decode(self, ids: list[int], skip_special: bool) -> str:
        table = [*self.symbols, *([b"", b""] if skip_special else [b"<pad>", b"<end>"])]
        return b"".join(table[i] for i in ids).decode("utf-8", errors="replace")


class TextTokenizer(Tokenizer):
    """A byte-pair vocabulary; see `from_file` (a tokenizer.json) and `from_gguf` (fields of a model file)."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        name: str,
        end_ids: Sequence[int],
        pad_id: int | None = None,
        bos_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
    ):
        """`core` does the splitting; ids are of its vocabulary; `pad_id` None means the first end id."""
        self.core, self.name, self.chat_template = core, name, chat_template
        self.vocabulary_size = 1 + max(core.get_vocab().values())
        self.end_ids = tuple(dict.fromkeys(end_ids))
        self.pad_id = pad_id if pad_id is not None or not self.end_ids else self.end_ids[0]
        self.bos_id, self.add_bos = bos_id, add_bos and bos_id is not None
        if not self.end_ids:
            raise ValueError(f"tokenizer {name!r}: no token is known to end a completion; give end_ids")
        for i in {*self.end_ids, self.pad_id, bos_id} - {None}:
            if not 0 <= i < self.vocabulary_size:
                raise ValueError(
                    f"tokenizer {name!r}: special id {i} is not in the vocabulary of {self.vocabulary_size}"
                )

    def _token_bytes(self) -> list[bytes]:
        by_byte = '"ByteLevel"' in json.dumps(json.loads(self.core.to_str())["decoder"])
        spelled = _byte_level_spelling() if by_byte else {}
        found = [b""] * self.vocabulary_size
        for text, i in self.core.get_vocab(with_added_tokens=False).items():
            if by_byte:
                found[i] = (
                    bytes(spelled[symbol] for symbol in text) if all(s in spelled for s in text) else text.encode()
                )
            elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                found[i] = bytes.fromhex(text[3:5])
            else:
                found[i] = text.replace("▁", " ").encode()
        for i, added in self.core.get_added_tokens_decoder().items():
            found[i] = b"" if added.special else added.content.encode()
        return found

    def _encode(self, text: str) -> list[int]:
        return self.core.encode(text, add_special_tokens=False).ids

    def _decode(self, ids: list[int], skip_special: bool) -> str:
        return self.core.decode(ids, skip_special_tokens=skip_special)

    @classmethod
    def from_file(cls, path: str | Path, **overrides) -> TextTokenizer:
        """Reads `path` (a tokenizer.json or a folder with one).

        Special ids and template come from tokenizer_config.json and chat_template.jinja beside it, if there;
        `overrides` are keywords of the constructor.

        Raises:
          FileNotFoundError: no such file. ValueError: not a tokenizer, or no end token is known.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise FileNotFoundError(f"tokenizer={str(path)!r}: {file} does not exist")
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"tokenizer={str(path)!r}: not a tokenizer.json: {error}") from None
        return cls(core, **{"name": file.resolve().parent.name, **_beside(file, core), **overrides})

    @classmethod
    def from_gguf(cls, fields: Mapping, name: str = "gguf", **overrides) -> TextTokenizer:
        """Builds byte-level BPE from the `tokenizer.*` fields of a GGUF file.

        Args:
          fields: those fields without their "tokenizer." prefix, as `read_gguf(...).tokenizer_fields`.
          overrides: keywords of the constructor.

        Raises:
          ValueError: a missing field, or a kind of vocabulary or pre-tokenizer that is not supported.
        """
        for key in ("ggml.model", "ggml.tokens", "ggml.merges"):
            if key not in fields:
                raise ValueError(f"tokenizer {name!r}: field tokenizer.{key} is missing")
        ends = [fields.get("ggml.eos_token_id"), fields.get("ggml.eot_token_id")]
        options = {
            "end_ids": [i for i in ends if i is not None],
            "pad_id": fields.get("ggml.padding_token_id"),
            "bos_id": fields.get("ggml.bos_token_id"),
            "add_bos": bool(fields.get("ggml.add_bos_token", False)),
            "chat_template": fields.get("chat_template"),
        }
        return cls(_byte_level_bpe(fields, name), name, **{**options, **overrides})


# How tokenizer.json files of these vocabularies split text into words; {} is how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def _byte_level_spelling() -> dict[str, int]:
    """Symbol → byte of byte-level vocabularies: printable bytes of Latin-1 are themselves, others follow from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _byte_level_bpe(fields: Mapping, name: str) -> tokenizers.Tokenizer:
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    words = lambda digits: tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(_WORDS.replace("{}", digits, 1)), behavior="isolated"
    )
    # what is split before the byte level, and whether that splits words itself
    splits = {
        "gpt-2": ([], True),
        "smollm": ([digits], True),
        "qwen2": ([words("")], False),
        "llama-bpe": ([words("{1,3}")], False),
    }
    supported = {"ggml.model": ["gpt2"], "ggml.pre": list(splits)}
    for key, choices in supported.items():
        if (value := fields.get(key)) not in choices:
            raise ValueError(
                f"tokenizer {name!r}: tokenizer.{key}={value!r} is not supported; choose a file with one of"
                f" {choices}, or use a tokenizer.json"
            )
    before, use_regex = splits[fields["ggml.pre"]]
    tokens = fields["ggml.tokens"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError(f"tokenizer {name!r}: {len(tokens) - len(vocabulary)} tokens appear twice")
    merges = [tuple(merge.split(" ", 1)) for merge in fields["ggml.merges"]]
    # a word of Llama 3 that is itself a token is that token, whatever its merges
    whole_words = fields["ggml.pre"] == "llama-bpe"
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*before, byte_level])
    if fields["ggml.pre"] == "qwen2":
        core.normalizer = tokenizers.normalizers.NFC()
    core.decoder = tokenizers.decoders.ByteLevel()
    for token, kind in zip(tokens, fields.get("ggml.token_type", [])):
        if kind in (3, 4):  # control, user-defined: both are matched whole
            added = tokenizers.AddedToken(token, special=kind == 3, normalized=False)
            (core.add_special_tokens if kind == 3 else core.add_tokens)([added])
    return core


def _read_json(path: Path) -> dict:
    """The dictionary in a file, {} where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a dictionary, found {type(found).__name__}")
    return found


def _beside(file: Path, core: tokenizers.Tokenizer) -> dict:
    """Special ids and template from the files next to a tokenizer.json. What ends a completion is told in up to three
    places, and every token they name does."""
    config = _read_json(file.parent / "tokenizer_config.json")

    def id_of(key: str) -> int | None:
        token = config.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        return None if token is None else core.token_to_id(token)

    template = file.parent / "chat_template.jinja"
    end_id, bos_id = id_of("eos_token"), id_of("bos_token")
    ends = [] if end_id is None else [end_id]
    for name in ("generation_config.json", "config.json"):
        given = _read_json(file.parent / name).get("eos_token_id")
        more = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(i) is int for i in more):
            raise ValueError(f"{file.parent / name}: eos_token_id={given!r} must be a number or a list of numbers")
        ends += more
    # a post-processor that puts a start token before every text is the same wish as the flag
    starts = bos_id is not None and core.encode("").ids[:1] == [bos_id]
    written = config.get("chat_template")
    if isinstance(written, list):  # several by name, as older files have it
        written = next((each.get("template") for each in written if each.get("name") == "default"), None)
    return {
        "end_ids": ends,
        "pad_id": id_of("pad_token"),
        "bos_id": bos_id,
        "add_bos": bool(starts if config.get("add_bos_token") is None else config["add_bos_token"]),
        "chat_template": template.read_text("utf-8") if template.is_file() else written,
    }


def make_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """Makes "bytes", "bytes(alphabet='01')", or what a tokenizer.json or the folder of one holds.

    Raises:
      FileNotFoundError, ValueError: no such name or file; the message lists the choices.
    """
    text = str(name_or_path)
    if text.partition("(")[0] == "bytes":
        _, keywords = parse_call(text, "tokenizer")
        if set(keywords) - {"alphabet"}:
            raise ValueError(f"tokenizer={text!r}: unknown keyword; it takes bytes(alphabet=None)")
        return ByteTokenizer(**keywords)
    if not Path(text).exists() or text.endswith(".gguf"):
        raise FileNotFoundError(
            f"tokenizer={text!r}: choose from ['bytes', the path of a tokenizer.json, a folder with one]"
            " (of a GGUF file: TextTokenizer.from_gguf(model.tokenizer_fields))"
        )
    return TextTokenizer.from_file(text)


def left_pad(rows: Sequence[Sequence[int]], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of different lengths → (tokens i32[P, length], mask bool[P, length]), real tokens at the right.

    The mask comes from the lengths, never from the pad id, which may also be a real token of a prompt.

    Raises:
      ValueError: a row is empty or longer than `length`; names the row and both lengths. Nothing is ever cut.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    for i in np.flatnonzero((lengths > length) | (lengths == 0)):
        limit = f"more than the limit of {length}" if lengths[i] else "at least one is needed"
        raise ValueError(f"prompt {i} has {lengths[i]} tokens, {limit}")
    tokens = np.full((len(rows), length), pad_id, dtype=np.int32)
    mask = np.arange(length)[None, :] >= length - lengths[:, None]
    for i, row in enumerate(rows):
        tokens[i, length - lengths[i] :] = row
    return tokens, mask
