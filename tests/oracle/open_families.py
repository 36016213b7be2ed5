"""Opens checkpoint folders with transformers and answers with its logits; run in transformers' own environment.

    PYTHON tests/oracle/open_families.py INPUTS.npz OUTPUTS.npz

INPUTS: for each name `NAME/folder` (str), `NAME/tokens` (i32[B, S]), and `NAME/text` (str) where its tokenizer is
asked too. OUTPUTS: `NAME/logits` f32[B, S, V], and `NAME/ids` of the text and `NAME/ends`, the end tokens of the
folder's generation settings. A folder that transformers does not read whole, every weight set and none left over, ends
the program.
"""

import sys

import numpy as np
import torch
import transformers


def main(inputs: str, outputs: str):
    found = {}
    with np.load(inputs) as file:
        for name in sorted({key.split("/")[0] for key in file.files}):
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                str(file[f"{name}/folder"]),
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
            for key, values in report.items():
                assert not values, (name, key, values)
            with torch.no_grad():
                tokens = torch.from_numpy(file[f"{name}/tokens"].astype(np.int64))
                if f"{name}/text" in file.files:
                    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file[f"{name}/folder"]))
                    text = str(file[f"{name}/text"])
                    found[f"{name}/ids"] = np.int32(tokenizer(text, add_special_tokens=False)["input_ids"])
                    found[f"{name}/ends"] = np.atleast_1d(model.generation_config.eos_token_id)
                found[f"{name}/logits"] = model.eval()(tokens).logits.numpy()
    np.savez(outputs, **found)


if __name__ == "__main__":
    main(*sys.argv[1:3])
