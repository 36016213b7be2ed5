"""TRL's GRPOTrainer for a few steps on a tiny random model, as it is, in an environment of its own.

    python trl_run.py OUTPUT_DIR

Leaves OUTPUT_DIR/completions/completions_*.parquet, and OUTPUT_DIR/known.json: what the reward function saw of every
completion (step by step), and the means that the trainer itself logged.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefghijklmnopqrstuvwxyz "
STEPS, PROMPTS, SIZE, LIMIT = 4, 4, 4, 12


def tiny():
    vocabulary = {letter: place for place, letter in enumerate(LETTERS)} | {"<pad>": 27, "<end>": 28}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=27,
        eos_token_id=28,
        bos_token_id=28,
    )
    return tokenizer, LlamaForCausalLM(config)


def main(folder: Path) -> None:
    tokenizer, model = tiny()
    seen = []

    def has_a_vowel_early(prompts, completions, completion_ids, **rest):
        rewards = [float(any(letter in "aeiou" for letter in text[:2])) for text in completions]
        for prompt, ids, text, reward in zip(prompts, completion_ids, completions, rewards):
            seen.append({"prompt": prompt, "tokens": len(ids), "text": text, "reward": reward})
        return rewards

    settings = GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * SIZE,
        num_generations=SIZE,
        max_completion_length=LIMIT,
        logging_steps=1,
        log_completions=True,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=0,
        learning_rate=1e-2,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": [f"say {letter}" for letter in LETTERS[:8]]})
    trainer = GRPOTrainer(
        model=model, reward_funcs=has_a_vowel_early, args=settings, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    (folder / "known.json").write_text(json.dumps({"seen": seen, "logged": logged}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
