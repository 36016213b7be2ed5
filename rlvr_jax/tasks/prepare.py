"""A problem set as a TFDS data set of ArrayRecord files, without TensorFlow.

python -m rlvr_jax.tasks.prepare "gsm8k(path='gsm8k')" DATA_DIR    prints the folder for `tfds(directory=…)`
"""

from __future__ import annotations

import re
import sys

import numpy as np

from rlvr_jax.tasks.task import SPLITS, Task, make_task

_NAMES = {"train": "train", "held_out": "test"}  # split → its name in TFDS


def write(task: Task, data_dir: str) -> str:
    """Writes the problems of a task as ArrayRecord, in their order; returns the folder of this version.

    Rows have question, answer (as its verifier takes it) and difficulty; the verifier, instruction and example stand in
    the metadata, so that reading needs nothing but the folder.
    """
    import tensorflow_datasets  # seconds to import, and few runs need it

    core, features = tensorflow_datasets.core, tensorflow_datasets.features

    class Problems(core.GeneratorBasedBuilder):
        VERSION = core.Version("1.0.0")
        name = re.sub(r"\W+", "_", task.name)
        code_path = None  # no files lie beside it; TFDS looks for them with a package it does not install

        def _info(self):
            return core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(
                    {"question": features.Text(), "answer": features.Text(), "difficulty": np.float64}
                ),
                disable_shuffling=True,
                metadata=core.MetadataDict(verifier=task.grader, instruction=getattr(task, "instruction", "")),
            )

        def _split_generators(self, manager):
            return {_NAMES[split]: self._generate_examples(split) for split in SPLITS}

        def _generate_examples(self, split):
            for key, problem in enumerate(task.problems(split)):
                yield (
                    key,
                    {"question": problem.prompt, "answer": problem.answer, "difficulty": problem.difficulty},
                )

    builder = Problems(data_dir=data_dir, file_format="array_record")
    builder.download_and_prepare()
    return str(builder.data_dir)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m rlvr_jax.tasks.prepare TASK DATA_DIR")
    print(write(make_task(sys.argv[1]), sys.argv[2]))
