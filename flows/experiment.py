"""params.yaml -> arms, seeds, runs. Wrong input is one clear line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows import bounds
from rl_core.config import RunSettings, resolve
from rl_core.errors import SettingsError
from rl_core.wording import nearest, shown

PARAMS_FILE = "params.yaml"
STATE_FOLDER = ".seedbed"
SECTIONS = ("experiment", "evaluation", "report", "arms")
ARM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
MAX_ARM_NAME = 100  # it names folders, files and DVC's stages
MAX_SEED = 2**32 - 1
MAX_EPISODES = 10_000
MAX_FINAL_EVALUATIONS = 1_000


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How every final policy is evaluated."""

    episodes: int = 20
    seed: int = 1000


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What the report counts as a score and how sure it must be."""

    final_evaluations: int = 3
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All arms × all seeds of one folder."""

    directory: Path
    title: str
    arms: dict[str, RunSettings]
    seeds: tuple[int, ...]
    evaluation: EvaluationSettings
    report: ReportSettings

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        return tuple((arm, seed) for arm in self.arms for seed in self.seeds)

    def run_dir(self, arm: str, seed: int) -> Path:
        return self.directory / "runs" / arm / str(seed)

    def state_dir(self, arm: str, seed: int) -> Path:
        return self.directory / STATE_FOLDER / "state" / arm / str(seed)

    def trace_file(self, arm: str, seed: int) -> Path:
        return self.directory / STATE_FOLDER / "traces" / f"{arm}-{seed}.json"

    def tensorboard_dir(self, arm: str, seed: int) -> Path:
        return self.directory / STATE_FOLDER / "tensorboard" / f"{arm}-{seed}"

    def settings(self, arm: str, seed: int) -> RunSettings:
        """Return the settings of one planned run; raise SettingsError if it is not planned."""
        if arm not in self.arms:
            raise SettingsError(f"no arm {arm!r} in this experiment{nearest(arm, self.arms)}")
        if seed not in self.seeds:
            known = ", ".join(map(str, self.seeds))
            raise SettingsError(f"no seed {seed} in this experiment; its seeds are {known}")
        return self.arms[arm]


def load(directory: Path, *, file: Path | None = None) -> Experiment:
    """Read and validate `directory/params.yaml`, or `file`; raise SettingsError with one line otherwise."""
    directory = directory.resolve()
    path = file or directory / PARAMS_FILE
    where = _display(path)
    data = _section(_parse(path, where), SECTIONS, where=where, required=SECTIONS)
    experiment = _section(
        data["experiment"],
        ("title", "arms", "seeds"),
        where=f"{where}: experiment",
        required=("arms", "seeds"),
    )
    arms = _arms(data["arms"], where=f"{where}: arms")
    names = _arm_names(experiment["arms"], arms, where=f"{where}: experiment.arms")
    return Experiment(
        directory=directory,
        title=_text(experiment.get("title", directory.name), where=f"{where}: experiment.title"),
        arms={name: arms[name] for name in names},
        seeds=_seeds(experiment["seeds"], where=f"{where}: experiment.seeds"),
        evaluation=_evaluation(data["evaluation"], where=f"{where}: evaluation"),
        report=_report(data["report"], where=f"{where}: report"),
    )


def _display(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _parse(path: Path, where: str) -> object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = _text_of(path, where)
    try:
        # YAML 1.2, as DVC reads it: `3e-4` is a number and `yes` a word
        bounds.require_readable(text, where)
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        problem = str(error.problem or error.context).partition("\n")[0]
        raise SettingsError(f"{where}:{line} not valid YAML: {problem}") from None
    except YAMLError as error:
        raise SettingsError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    except SettingsError:
        raise
    except (ValueError, OverflowError):
        raise SettingsError(f"{where}: not valid YAML: a number or a date that there is not") from None


def _text_of(path: Path, where: str) -> str:
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{where}: cannot be read: it is not a file")
        if path.stat().st_size > bounds.MOST_BYTES:
            raise SettingsError(f"{where}: larger than {bounds.MOST_BYTES // 1000} kB, which no experiment needs")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(
            f"{where}: no such file; run in an experiment's folder, name it with -C DIR,"
            " or make one: python -m flows init DIR"
        ) from None
    except OSError as error:
        raise SettingsError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: cannot be read: it is not UTF-8 text") from None


def _section(value: object, known: Sequence[str], *, where: str, required: Sequence[str] = ()) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}: expected keys {', '.join(known)}, not {_kind(value)}")
    for key in value:
        if key not in known:
            raise SettingsError(f"{where}: unknown key {shown(key)}{nearest(key, known)}")
    for key in required:
        if key not in value:
            raise SettingsError(f"{where}: {shown(key)} is missing")
    return value


def _arms(value: object, *, where: str) -> dict[str, RunSettings]:
    if not isinstance(value, Mapping) or not value:
        raise SettingsError(f"{where}: expected one section for each arm, not {_kind(value)}")
    arms = {}
    for name, arm in value.items():
        if not isinstance(name, str) or not ARM_NAME.fullmatch(name):
            raise SettingsError(
                f"{where}: {shown(name)} is no arm name; use letters, digits, '-' and '_', no '-' first"
            )
        if len(name) > MAX_ARM_NAME:
            raise SettingsError(
                f"{where}: an arm name of {len(name)} characters is too long; the most is {MAX_ARM_NAME}"
            )
        if not isinstance(arm, Mapping):
            raise SettingsError(f"{where}.{name}: expected the arm's settings, not {_kind(arm)}")
        arms[name] = resolve(arm, where=f"{where}.{name}")
    return arms


def _arm_names(value: object, arms: Mapping[str, object], *, where: str) -> list[str]:
    names: list[str] = []
    for name in _list(value, where=where, example="[sac-speed, sac-lean]"):
        if not isinstance(name, str):
            raise SettingsError(f"{where}: {shown(name)} is {_kind(name)}; an arm is named by a string")
        if name not in arms:
            raise SettingsError(f"{where}: no arm {shown(name)} under 'arms'{nearest(name, arms)}")
        if name in names:
            raise SettingsError(f"{where}: arm {shown(name)} is listed twice")
        names.append(name)
    return names


def _seeds(value: object, *, where: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for item in _list(value, where=where, example="[0, 1, 2]"):
        seed = _integer(item, where=where, at_least=0, at_most=MAX_SEED)
        if seed in seeds:
            raise SettingsError(f"{where}: seed {seed} is listed twice")
        seeds.append(seed)
    return tuple(seeds)


def _evaluation(value: object, *, where: str) -> EvaluationSettings:
    given = _section(value, ("episodes", "seed"), where=where)
    default = EvaluationSettings()
    episodes, seed = given.get("episodes", default.episodes), given.get("seed", default.seed)
    return EvaluationSettings(
        episodes=_integer(episodes, where=f"{where}.episodes", at_least=1, at_most=MAX_EPISODES),
        seed=_integer(seed, where=f"{where}.seed", at_least=0, at_most=MAX_SEED),
    )


def _report(value: object, *, where: str) -> ReportSettings:
    given = _section(value, ("final_evaluations", "confidence"), where=where)
    default = ReportSettings()
    confidence = given.get("confidence", default.confidence)
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise SettingsError(
            f"{where}.confidence: expected a number between 0 and 1, such as 0.95, not {shown(confidence)}"
        )
    final = given.get("final_evaluations", default.final_evaluations)
    return ReportSettings(
        final_evaluations=_integer(
            final, where=f"{where}.final_evaluations", at_least=1, at_most=MAX_FINAL_EVALUATIONS
        ),
        confidence=confidence,
    )


def _list(value: object, *, where: str, example: str) -> list[object]:
    if not isinstance(value, list):
        raise SettingsError(f"{where}: expected a list such as {example}, not {_kind(value)}")
    if not value:
        raise SettingsError(f"{where}: the list is empty; expected something like {example}")
    return value


def _integer(value: object, *, where: str, at_least: int, at_most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{where}: expected an integer, not {_kind(value)} ({shown(value)})")
    if value < at_least:
        raise SettingsError(f"{where}: {shown(value)} is too small; the least is {at_least}")
    if value > at_most:
        raise SettingsError(f"{where}: {shown(value)} is too large; the most is {at_most}")
    return value


def _text(value: object, *, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where}: expected a string, not {_kind(value)} ({shown(value)})")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    names = {bool: "a true/false value", int: "an integer", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "keys" if isinstance(value, Mapping) else "a value of another kind")
