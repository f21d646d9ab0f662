"""The loop: what a run leaves behind, and how it ends when it ends badly."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oelm.config import RunConfig
from oelm.data.batches import open_corpus
from oelm.errors import RunFailedError, UserError
from oelm.runfolder import RunFolder, read_lines, write_whole
from oelm.sampling import open_model
from oelm.training.loop import fit
from oelm.training.observe import Observer, Progress
from oelm.training.step import TorchEngine
from tests.conftest import flags_of, needs, oelm

Tiny = Callable[..., RunConfig]


def test_the_run_folder_holds_what_it_promises(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    files = {path.name for path in folder.path.iterdir()}
    assert files >= {
        "config.yaml", "manifest.json", "metrics.jsonl", "evals.jsonl", "timing_stats.json", "freeze_audit.json",
        "status.json", "training.log", "samples", "checkpoints",
    }  # fmt: skip
    manifest = folder.manifest()
    assert manifest["data"]["sha256"].keys() == {"train", "val", "test"}
    assert manifest["parameters"]["frozen"] == 2 * 2 * 32 * 32
    assert manifest["learning_rate"]["grid"] == []
    assert manifest["sessions"][0]["versions"]["torch"] == torch.__version__
    assert [record["step"] for record in read_lines(folder.metrics)] == [5, 10, 15, 20]
    assert [(record["step"], record["final"]) for record in read_lines(folder.evals)] == [
        (10, False),
        (20, False),
        (20, True),
    ]
    assert folder.config() == tiny(model_type="oelm_v2").resolved(1024)


def test_timing_stats_have_the_studys_keys(tiny: Tiny) -> None:
    folder = fit(tiny())
    stats = json.loads((folder.path / "timing_stats.json").read_text())
    keys = """model_type init_method final_perplexity total_wall_time total_formatted num_steps_measured mean_step_time
    std_step_time median_step_time min_step_time max_step_time p95_step_time p99_step_time total_validation_time
    mean_validation_time num_validations""".split()
    assert set(keys) <= stats.keys()
    assert stats["num_steps_measured"] == 20
    assert stats["num_validations"] == 3
    assert sum(stats["seconds_by_part"].values()) == pytest.approx(stats["total_wall_time"])
    assert set(stats["seconds_by_part"]) == {"startup", "compiling", "training", "validation", "saving"}


def test_no_time_is_left_out_of_the_wall_time(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of looking through the corpus first, nor that of the sample at the end."""
    for place in ("oelm.training.loop.open_corpus", "oelm.training.run.generate"):
        module, _, name = place.rpartition(".")
        real = getattr(sys.modules[module], name)

        def slow(*arguments: Any, real: Callable[..., Any] = real) -> Any:
            time.sleep(1)
            return real(*arguments)

        monkeypatch.setattr(place, slow)
    assert fit(tiny(max_steps=2, warmup_steps=1)).timing()["total_wall_time"] > 2


def test_the_test_split_is_looked_at_once_for_the_final_score(tiny: Tiny, storybook: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(storybook, corpus)
    fields = {"data_path": str(corpus), "final_split": "test"}
    folder = fit(tiny(**fields))
    *on_the_way, final = read_lines(folder.evals)
    assert {score["split"] for score in on_the_way} == {"val"}
    test_tokens = len(open_corpus(corpus, 0, 32, ["test"]).split("test")) - 1
    assert (final["split"], final["tokens_scored"]) == ("test", test_tokens)
    log = (folder.path / "training.log").read_text()
    assert f"on all {test_tokens:,} test tokens" in log
    (corpus / "test.bin").write_bytes(b"")
    fit(tiny(data_path=str(corpus), out_dir=str(tmp_path / "never-looks")))
    with pytest.raises(UserError, match=r"test\.bin has 0 bytes"):
        fit(tiny(**fields, out_dir=str(tmp_path / "would-look")))


def test_the_end_says_what_the_heads_do(tiny: Tiny) -> None:
    scores = read_lines(fit(tiny(num_heads=4)).evals)
    assert [("heads" in score) for score in scores] == [False, False, True]
    for kind in ("previous_token", "induction"):
        heads = scores[-1]["heads"][kind]
        assert (len(heads), {len(layer) for layer in heads}) == (2, {4})
        assert all(0 <= score <= 1 for layer in heads for score in layer)


def test_the_final_score_is_on_the_whole_validation_set_and_right(tiny: Tiny, storybook: Path) -> None:
    folder = fit(tiny())
    final = folder.final_eval()
    assert final is not None
    tokens = open_corpus(storybook, 0, 32).split("val")
    assert final["tokens_scored"] == len(tokens) - 1
    model = open_model(folder)
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 32):
            window = torch.tensor(tokens[start : start + 33].astype("int64"))
            total += float(model(window[None, :-1], window[None, 1:])) * (len(window) - 1)
    assert final["loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-5)
    assert final["ppl"] == pytest.approx(math.exp(final["loss"]))


def test_validation_scores_the_number_of_tokens_that_the_config_says(tiny: Tiny) -> None:
    folder = fit(tiny(val_tokens=1000))
    assert [record["tokens_scored"] for record in read_lines(folder.evals) if not record["final"]] == [1000, 1000]


def test_validation_and_saving_change_nothing(tiny: Tiny, tmp_path: Path) -> None:
    often = fit(tiny(val_interval=1, save_interval=1, log_interval=1, dropout=0.2, out_dir=str(tmp_path / "often")))
    never = fit(tiny(val_interval=99, save_interval=99, log_interval=99, dropout=0.2, out_dir=str(tmp_path / "never")))
    last = "step-20/model.safetensors"
    assert (often.checkpoints / last).read_bytes() == (never.checkpoints / last).read_bytes()


def test_drift_is_nothing_for_frozen_matrices_and_something_for_trained_ones(tiny: Tiny, tmp_path: Path) -> None:
    frozen = fit(tiny(model_type="q=headwise,k=headwise+trained")).final_eval()
    assert frozen is not None
    assert frozen["q_drift"] == [0.0, 0.0]
    assert all(drift > 0 for drift in frozen["k_drift"])
    assert len(frozen["attention_entropy"]) == 2


class Recorder(Observer):
    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.seen: list[Progress] = []

    def announce(self, facts: dict[str, str]) -> None:
        self.facts = facts

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)


def test_the_start_says_what_will_run_and_progress_what_happens(tiny: Tiny) -> None:
    recorder = Recorder()
    fit(tiny(model_type="oelm_v2"), recorder)
    assert "frozen" in recorder.facts["parameters"]
    assert "256 tokens" in recorder.facts["each step"]
    assert "sha256" in recorder.facts["data"]
    assert "about" in recorder.facts["steps"]
    assert recorder.seen[-1].step == 20
    line = recorder.seen[-1].line()
    for word in ("step 20/20", "loss", "val PPL", "best", "tokens/s", "left"):
        assert word in line


def test_a_loss_that_is_not_finite_stops_the_run_by_name_and_keeps_the_last_checkpoint(tiny: Tiny) -> None:
    """A rate so high that the weights overflow soon after the warm-up."""
    config = tiny(max_lr=90.0, warmup_steps=18, max_steps=200, weight_decay=90.0, grad_clip=0, save_interval=2)
    with pytest.raises(RunFailedError, match=r"at step \d+ \(learning rate .*Last good checkpoint: .*step-\d+"):
        fit(config)
    folder = RunFolder(config.run_folder)
    status = folder.status()
    assert status["state"] == "failed"
    assert "diverged" in status["message"]
    assert all(torch.isfinite(p).all() for p in open_model(folder).parameters())


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_step_that_fp16_has_skipped_leaves_files_that_can_be_read(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler meets infinite norms, and JSON knows none. The tenth step is saved before it is in the metrics."""
    config, results = tiny(log_interval=7), TorchEngine.results

    def overflown(engine: TorchEngine) -> list[tuple[float, float]]:
        return [(loss, math.inf) for loss, _ in results(engine)]

    monkeypatch.setattr("oelm.training.step.precision_of", lambda *_: torch.float16)
    monkeypatch.setattr(TorchEngine, "results", overflown)
    folder = fit(config)
    assert [record["grad_norm"] for record in read_lines(folder.metrics)] == [0.0] * 3
    again = fit(replace(config, out_dir=str(folder.path), resume=str(folder.checkpoints / "step-10")))
    assert again.manifest()["sessions"][-1]["first_step"] == 10


def test_another_identity_in_the_folder_is_refused_with_what_differs(tiny: Tiny) -> None:
    folder = fit(tiny())
    before = (folder.path / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"holds another run \(max_lr: 0\.003 there, 0\.001 here"):
        fit(tiny(max_lr=1e-3))
    with pytest.raises(UserError, match="holds a run already"):
        fit(tiny(resume="never"))
    assert (folder.path / "config.yaml").read_text() == before


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "evals.jsonl", "status.json", "checkpoints/x"])
def test_files_that_no_manifest_claims_are_left_alone(tiny: Tiny, name: str) -> None:
    config = tiny()
    path = config.run_folder / name
    path.parent.mkdir(parents=True)
    path.write_text("seed: 1\n")
    with pytest.raises(UserError, match=rf"has a {name.removesuffix('/x')}, but no manifest\.json .*another --out_dir"):
        fit(config)
    assert path.read_text() == "seed: 1\n"
    assert {each.name for each in config.run_folder.iterdir()} == {".lock", name.removesuffix("/x")}


def test_a_run_without_its_manifest_is_not_gone_on_with_as_another(tiny: Tiny) -> None:
    folder = fit(tiny(seed=1))
    (folder.path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"has a config\.yaml, but no manifest\.json"):
        fit(tiny(seed=2, max_lr=0.1))


def test_a_folder_of_two_runs_is_not_called_finished(tiny: Tiny, tmp_path: Path) -> None:
    ours, theirs = (fit(tiny(max_lr=rate, out_dir=str(tmp_path / f"{rate}"))) for rate in (1e-3, 2e-3))
    (ours.path / "manifest.json").write_bytes((theirs.path / "manifest.json").read_bytes())
    with pytest.raises(UserError, match=r"config\.yaml and manifest\.json are not of one run"):
        fit(tiny(max_lr=2e-3, out_dir=str(ours.path)))


@pytest.mark.parametrize("last", ["manifest.json", "config.yaml", "freeze_audit.json"])
def test_a_run_killed_while_it_claims_its_folder_can_be_started_again(
    tiny: Tiny, tmp_path: Path, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(tiny(model_type="oelm_v2", out_dir=str(tmp_path / "whole")))
    config = tiny(model_type="oelm_v2")

    class GoneError(BaseException):
        """As good as a kill."""

    def write_and_die(path: Path, content: str | bytes) -> None:
        write_whole(path, content)
        if path.name == last:
            raise GoneError

    with monkeypatch.context() as patch:
        for module in ("oelm.runfolder", "oelm.training.run"):
            patch.setattr(f"{module}.write_whole", write_and_die)
        with pytest.raises(GoneError):
            fit(config)
    with pytest.raises(UserError, match="holds another run"):
        fit(tiny(model_type="oelm_v2", seed=3))
    folder = fit(config)
    for name in ("checkpoints/step-20/model.safetensors", "freeze_audit.json"):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_corpus_is_said_to_differ_only_where_it_does(tiny: Tiny, tmp_path: Path, storybook: Path) -> None:
    folder, other = fit(tiny()), fit(tiny(seed=1, out_dir=str(tmp_path / "other")))
    shutil.copy(other.path / "manifest.json", folder.path)
    with pytest.raises(
        UserError, match=r"config\.yaml and manifest\.json are not of one run \(seed is 0 in the one, 1"
    ):
        fit(tiny())
    data = Path(shutil.copytree(storybook, tmp_path / "data"))
    tokens = np.fromfile(data / "train.bin", "uint16")[:-100]
    tokens.tofile(data / "train.bin")
    meta = json.loads((data / "meta.json").read_text())
    meta["tokens"]["train"] = len(tokens)
    meta["sha256"]["train"] = hashlib.sha256(tokens.tobytes()).hexdigest()
    (data / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"holds another run \(its corpus has other bytes\)"):
        fit(tiny(seed=1, out_dir=str(other.path), data_path=str(data)))


def test_a_score_that_is_no_number_fails_the_run_and_is_not_recorded(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights break in the very last update, after the last loss of training."""
    step = TorchEngine.step

    def break_at_the_end(engine: TorchEngine, number: int) -> None:
        step(engine, number)
        if number == 19:
            with torch.no_grad():
                engine.model.tokens.weight.fill_(math.nan)

    monkeypatch.setattr(TorchEngine, "step", break_at_the_end)
    config = tiny()
    with pytest.raises(
        RunFailedError, match=r"the validation loss is nan at step 20 .*Last good checkpoint: .*step-10"
    ):
        fit(config)
    folder = RunFolder(config.run_folder)
    assert folder.status()["state"] == "failed"
    assert [score["step"] for score in folder.scores()] == [10]


def test_the_score_at_the_end_is_announced(tiny: Tiny, storybook: Path) -> None:
    recorder = Recorder()
    folder = fit(tiny(), recorder)
    tokens = f"{len(open_corpus(storybook, 0, 32).split('val')) - 1:,}"
    assert recorder.facts["steps"].endswith(f"; then the score on all {tokens} validation tokens")
    assert f"scoring all {tokens} validation tokens" in (folder.path / "training.log").read_text()


def test_a_model_too_large_for_any_memory_is_said_to_be_so(tiny: Tiny) -> None:
    with pytest.raises(UserError, match=r"the model does not fit into memory: [\d,]+ parameters.*choose a smaller one"):
        fit(tiny(vocab_size=2**31, d_model=2**20))


def test_a_machine_without_a_compiler_is_told_what_to_do(tiny: Tiny, tmp_path: Path) -> None:
    flags = flags_of(tiny(engine="compile", max_steps=1, warmup_steps=1))
    result = oelm("train", *flags, PATH=str(tmp_path), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 2
    assert result.stderr.startswith("oelm: --engine compile cannot be compiled on this machine (")
    assert result.stderr.endswith("; install a C++ compiler, such as g++, or use --engine eager\n")
    assert result.stderr.count("\n") == 1


def test_deterministic_kernels_are_for_the_run_alone(tiny: Tiny) -> None:
    memory: Any = torch.utils.deterministic

    class Looking(Observer):
        def progress(self, progress: Progress) -> None:
            assert torch.are_deterministic_algorithms_enabled()
            assert not memory.fill_uninitialized_memory

    folder = fit(tiny(deterministic=True, max_steps=1, warmup_steps=1, log_interval=1), Looking())
    assert folder.manifest()["sessions"][0]["deterministic"]
    assert not torch.are_deterministic_algorithms_enabled()
    assert memory.fill_uninitialized_memory


def test_a_full_disk_gets_one_line_and_keeps_what_was_saved(tiny: Tiny, tmp_path: Path) -> None:
    """On a real disk that is really full: a small tmpfs, mounted in a namespace of its own."""
    needs("tmpfs")
    mount = tmp_path / "disk"
    mount.mkdir()
    config = tiny(out_dir=str(mount / "run"), max_steps=400, save_interval=2, d_model=64, d_ff=256)
    train = f"{sys.executable} -m oelm train {' '.join(flags_of(config))}"
    program = f"mount -t tmpfs -o size=2200k tmpfs {mount} && {train}; echo exit $?; cd {mount}/run; ls checkpoints/*"
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", f"{program}; cat status.json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert "exit 2" in result.stdout, result.stdout + result.stderr
    assert result.stderr.count("no space left on the disk") == 1
    assert "Traceback" not in result.stderr
    whole = ("clock.safetensors", "model.safetensors", "optimizer.safetensors", "state.json")
    assert "\n".join(["checkpoints/step-2:", *whole]) in result.stdout
    assert '"state": "failed"' in result.stdout


BAD_RUNS = {
    "unknown variant": (["--model_type", "oelm_vv2"], "did you mean oelm_v2"),
    "unknown preset": (["--preset", "nanoo"], "did you mean nano"),
    "heads that do not divide": (["--num_heads", "3"], "--num_heads 3 does not divide"),
    "steps out of range": (["--max_steps", "-5"], "--max_steps -5 is out of range"),
    "a missing corpus": (["--data_path", "nowhere"], "holds no prepared corpus; run: oelm prepare"),
    "a missing file": (["--config", "nowhere.yaml"], "no such file"),
    "a GPU that is not there": (["--device", "cuda:99"], "CUDA device"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_input_gets_one_line_and_exit_code_2(case: str, storybook: Path, tmp_path: Path) -> None:
    flags, message = BAD_RUNS[case]
    data = [] if "--data_path" in flags else ["--data_path", str(storybook)]
    result = oelm("train", *data, "--out_dir", str(tmp_path / "run"), *flags, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = oelm("train", "--debug", "--data_path", "nowhere", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
