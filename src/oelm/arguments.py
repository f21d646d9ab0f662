"""What stands behind the verbs of the command line: flags as dataclasses, and tyro's mistakes in one line."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import tyro
from tyro.conf import OmitArgPrefixes, Positional
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from oelm.config import Model, Operation, RunConfig, Training, layered
from oelm.errors import UserError

T = TypeVar("T")
OUTPUTS = "outputs"
Places = Annotated[
    tuple[str, ...], Positional, tyro.conf.arg(metavar="[FOLDER ...]", help_behavior_hint="(default: outputs)")
]
Runs = Annotated[tuple[str, ...], Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
Experiments = Annotated[
    tuple[str, ...],
    Positional,
    tyro.conf.arg(metavar="EXPERIMENT [EXPERIMENT ...]", help_behavior_hint="(required)"),
]


@dataclass(frozen=True)
class RunFlags:
    """Train one run. It says first what will run; run again, it goes on where it stopped.

    Every field is a flag. What no flag says comes from --config, then --preset, then --recipe. Over several processes:
    torchrun --nproc_per_node=2 -m oelm train …
    """

    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    operation: Operation = field(default_factory=Operation)
    config: str | None = None
    """YAML file of fields; the config.yaml of a run folder is one."""


@dataclass(frozen=True)
class InfoFlags(RunFlags):
    """Say what a run would be, without running it: parameters, FLOPs per step by part, memory, what freezing saves."""

    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True)
class RunExperiments:
    """Run experiments, or a matrix of your own, one after the other or as many at once as there is room for.

    EXPERIMENT is GPT-01 … GPT-07 (the original study's), all (of these), or the .yaml file of a matrix. What is
    finished is skipped, what was interrupted goes on; several such commands on the same folder share the work.
    """

    experiments: Experiments = ()
    """What to run."""
    set: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE", help_behavior_hint="")
    ] = ()
    """Change a field of all these runs, such as max_steps=2000; may be given several times."""
    seeds: int | None = None
    """How many seeds each variant gets. None: one, or as many as the matrix says."""
    gpus: Annotated[str | None, tyro.conf.arg(metavar="N,N…")] = None
    """Which GPUs may be used, such as 2,3. None: all of this machine. One that somebody else uses is waited for."""
    gpus_per_run: int = 1
    """GPUs that each run gets, by torchrun."""
    slots: int | None = None
    """Run on the CPU, so many at once, those of other queues on the same out_dir among them. None: on GPUs; where there
    are none, one at once on the CPU."""
    wait: Annotated[float | None, tyro.conf.arg(metavar="MINUTES")] = None
    """Give up when no GPU has come free for so many minutes. None: wait as long as needed."""
    retries: int = 1
    """How often a run that failed is started again."""
    detach: bool = False
    """Go on in the background, even after you have logged out."""
    out_dir: str = OUTPUTS
    """Where the run folders go."""
    data_dir: str = "data"
    """Where the prepared corpora are."""


F = TypeVar("F", bound=RunFlags)


def run_config(kind: type[F], arguments: list[str], prog: str) -> tuple[F, RunConfig]:
    """Parses the flags of a run over the defaults that --config, --preset and --recipe among them set."""
    layers = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "preset", "recipe"):
        layers.add_argument(f"--{name}", nargs="?")  # where the value is missing, tyro says so below
    given = {name: value for name, value in vars(layers.parse_known_args(arguments)[0]).items() if value is not None}
    base = layered(given.pop("config", None), given)

    def section(part: type[Any]) -> Any:
        return part(**{f.name: base[f.name] for f in fields(part) if f.name in base})

    defaults = kind(section(Model), section(Training), section(Operation))
    flags = parsed(kind, arguments, prog, default=defaults, config=(OmitArgPrefixes,), use_underscores=True)
    return flags, RunConfig(**asdict(flags.model), **asdict(flags.training), **asdict(flags.operation))


def parsed(kind: Callable[..., T], arguments: list[str], prog: str, **options: Any) -> T:
    """What tyro makes of the arguments. What it prints about a mistake, a box, becomes the one line of a UserError."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), OPTIONALS:
            found: T = tyro.cli(kind, args=arguments, prog=prog, **options)
            return found
    except SystemExit as end:
        if not end.code:  # it has printed the help
            raise
        raise UserError(f"{_gist(said.getvalue())} See {prog} --help") from None


def _paragraphs(helptext: str) -> str:
    """A docstring without the line breaks within its paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", helptext.strip()))


# tyro keeps breaks before lines that are indented, as those of a field's docstring are, and has no setting for it.
with contextlib.suppress(AttributeError):  # in a version that does it elsewhere, some sentences are broken, no more
    tyro._strings.remove_single_line_breaks = _paragraphs

OPTIONALS = tyro.constructors.ConstructorRegistry()


@OPTIONALS.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A number or a text that may be None: INT in the help, where tyro would say {None}|INT."""
    kind, *others = (each for each in get_args(info.type) or (None,) if each is not NoneType)
    if others or kind not in (int, float, str) or NoneType not in get_args(info.type):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words == ["None"] else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


# What Python says of a value that is of another type, and what we say.
PLAIN_WORDS = {
    r"invalid literal for int\(\) with base 10: '(.*)'": r"'\1' is not a whole number",
    r"could not convert string to float: '(.*)'": r"'\1' is not a number",
}


def _is_rule(line: str) -> bool:
    return not line.strip("─-")


def _gist(box: str) -> str:
    """The first paragraph of a box, and the first option that it offers for one that it does not know."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip(" │╭╮╰╯") for line in plain.splitlines()]
    body = itertools.dropwhile(_is_rule, lines[1:])  # under the title, and a rule where the box has no frame
    paragraph = " ".join(itertools.takewhile(lambda line: not _is_rule(line), body)).rstrip(".")
    for theirs, ours in PLAIN_WORDS.items():
        paragraph = re.sub(theirs, ours, paragraph)
    offer = re.search(r"(?:Perhaps you meant|Arguments similar to .*): (--\S+)", " ".join(lines))
    return paragraph[:1].lower() + paragraph[1:] + (f"; did you mean {offer[1]}?" if offer else ".")
