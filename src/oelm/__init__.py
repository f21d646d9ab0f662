"""What it costs, and what it saves, to freeze a transformer's Query and Key projections.

import oelm

oelm.prepare("storybook")
runs = [oelm.train(preset="nano", model_type=name, max_steps=300) for name in ("baseline", "oelm_v2")]
print(oelm.compare(runs))
print(oelm.sample(runs, prompt="One day"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["RunConfig", "compare", "prepare", "report", "sample", "train"]

if TYPE_CHECKING:
    from oelm.api import compare, prepare, report, sample, train
    from oelm.config import RunConfig


def __getattr__(name: str) -> Any:
    """Loads the interface on first use, so that `import oelm` and `oelm --help` do not wait for PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    from oelm import api

    return getattr(api, name)
