"""The walls of the house: who may import whom, and which library has which door.

Read from the import statements with `ast`: nothing is executed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A file may import strictly lower floors, and files of its own room (a folder).
FLOORS = (
    # 0 ground
    ("types", "verdict", "masked", "registry", "rng", "means", "compiles", "tokenizer", "hosts", "__init__"),
    ("estimators", "policy", "tasks", "mixture"),  # 1 rooms, which do not know one another
    ("data", "sharding", "optimizer", "checkpoint", "metrics", "sampling", "watchdog"),  # 2 machines
    ("rollout", "update", "resharding", "diagnose"),  # 3 verbs
    ("evaluate", "config", "report"),  # 4 judges
    ("run", "workdir", "lab"),  # 5 what a config names, made
    ("train", "doctor", "plan"),  # 6 the loop, and what comes before it
    ("cli",),  # 7 commands
)
# `train` run as a program hands its arguments to the command line; `means` stands on `masked`, both ground.
EXCEPTIONS = {("train", "cli")}
GROUND_MAY_IMPORT_GROUND = True

# Library → the places of the package that may import it.
DOORS = {
    "flax": ("policy",),
    "optax": ("optimizer", "update"),
    "orbax": ("checkpoint",),
    "grain": ("data",),
    "tensorflow_datasets": ("tasks",),
    "ml_collections": ("config", "run", "workdir", "train", "doctor", "plan", "lab"),
    "tokenizers": ("tokenizer",),
    "jinja2": ("tokenizer",),
    "gguf": ("policy",),
    "scipy": ("diagnose",),
    "pyarrow": ("diagnose",),
    "matplotlib": ("report",),
    "rich": ("metrics", "report", "doctor", "plan", "cli"),
    "tensorboardX": ("metrics",),
    "math_verify": ("tasks",),
    "latex2sympy2_extended": ("tasks",),
    "sympy": ("tasks",),
    "mpmath": ("tasks",),
    "reasoning_gym": ("tasks",),
}
NEVER = ("torch", "tensorflow", "transformers", "trl")
NO_JAX = ("tasks", "metrics", "report", "tokenizer")  # strings and floats only
ARRAY_TASKS = ("toy", "demonstrators")  # of the room tasks: their verdict is computed inside jit


def place(path: Path) -> str:
    """The room or file of the package a path belongs to: rlvr_jax/policy/gguf.py → "policy"."""
    return path.relative_to(ROOT / "rlvr_jax").with_suffix("").parts[0]


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted module) of every import of a file, those inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write it out"
            found.append((node.lineno, node.module))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def package_files() -> list[Path]:
    return sorted((ROOT / "rlvr_jax").rglob("*.py"))


def floor_of(name: str) -> int:
    return next(number for number, names in enumerate(FLOORS) if name in names)


def test_every_file_has_a_floor():
    missing = {place(path) for path in package_files()} - {name for names in FLOORS for name in names}
    assert not missing, f"no floor for {missing}: add them to FLOORS, and to the picture in README.md"


@pytest.mark.parametrize("path", package_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    own = place(path)
    for line, module in imports(path):
        parts = module.split(".")
        if parts[0] in ("configs", "experiments", "tests"):
            pytest.fail(f"{path}:{line}: the package imports {module}")
        if parts[0] != "rlvr_jax" or len(parts) == 1:
            continue
        other = parts[1]
        if other == own or (own, other) in EXCEPTIONS or (floor_of(own) == floor_of(other) == 0):
            continue
        assert floor_of(other) < floor_of(own), (
            f"{path}:{line}: {own} (floor {floor_of(own)}) imports {other} (floor {floor_of(other)})"
        )


@pytest.mark.parametrize("path", package_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_library_has_one_door(path):
    own = place(path)
    for line, module in imports(path):
        library = module.split(".")[0]
        assert library not in NEVER, f"{path}:{line}: {library} must never be imported by the package"
        if library in DOORS:
            assert own in DOORS[library], f"{path}:{line}: {library} belongs in {DOORS[library]}"
        if library in ("jax", "jaxlib") and path.stem not in ARRAY_TASKS:
            assert own not in NO_JAX, f"{path}:{line}: {own} works on plain values and imports no jax"


def test_configs_see_only_the_config_module():
    for path in (ROOT / "configs").glob("*.py"):
        for line, module in imports(path):
            if module.startswith("rlvr_jax"):
                allowed = ("rlvr_jax.config", "rlvr_jax.estimators", "rlvr_jax.tokenizer", "rlvr_jax.lab")
                assert module.startswith(allowed), f"{path}:{line}: a config imports {module}"


def test_what_must_not_be_installed_is_not():
    """Installing the package pulls neither torch nor TensorFlow: the lock has no line for them."""
    names = {
        line.split("==")[0].split("[")[0].strip().lower()
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    }
    assert "jax" in names and len(names) > 30
    assert not names & {"torch", "tensorflow", "tensorflow-cpu", "transformers", "trl"}


def test_the_law_of_the_estimator():
    """The loop and the update never mention a paper: no name of the catalogue occurs in them."""
    from rlvr_jax.estimators import catalogue

    for name in ("train.py", "update.py", "run.py", "rollout.py"):
        tree = ast.parse((ROOT / "rlvr_jax" / name).read_text())
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not words & set(catalogue), f"{name} mentions {words & set(catalogue)}"
