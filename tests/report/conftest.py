"""Synthetic run folders: what a run leaves, drawn from a seeded generator instead of trained."""

import csv
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flows import experiment as experiments
from flows.experiment import EvaluationSettings, Experiment, ReportSettings
from flows.report import build
from rl_core import envs
from rl_core.config import RunSettings, resolve

ARMS: dict[str, dict[str, object]] = {
    "sac-speed": {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000},
    "sac-lean": {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000, "reward": "lean"},
    "td3-speed": {"task": "HalfCheetah-v5", "algorithm": "td3", "env_steps": 30_000},
    "td3-lean": {"task": "HalfCheetah-v5", "algorithm": "td3", "env_steps": 30_000, "reward": "lean"},
}
LEVELS = {"sac-speed": 3.0, "sac-lean": 2.4, "td3-speed": 2.0, "td3-lean": 1.7}  # final speed, m/s
STEPS = 1000
EPISODES = 20


class Folder:
    """An experiment whose runs can be written, bent and broken."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def write(self, arm: str, seed: int, *, points: int = 30, level: float | None = None, spread: float = 0.15) -> Path:
        """Write everything one finished run leaves; every number follows from arm and seed."""
        settings = self.experiment.arms[arm]
        random = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{arm}/{seed}".encode()).digest()[:8], "little"))
        target = (LEVELS.get(arm, 2.0) if level is None else level) + spread * random.standard_normal()
        folder = self.experiment.run_dir(arm, seed)
        folder.mkdir(parents=True, exist_ok=True)
        steps = np.linspace(settings.env_steps / points, settings.env_steps, points).round()
        learned = target * (1 - np.exp(-3 * steps / settings.env_steps)) + 0.1 * spread * random.standard_normal(points)
        curve = {"env_steps": steps, "updates": steps * 0.9, "episodes": np.arange(1, points + 1)}
        curve |= episode_columns(settings, learned, random, mean=True) | yardstick_columns(settings, learned, random)
        curve = {"return_mean" if name == "return" else name: values for name, values in curve.items()}
        curve["return_std"] = np.full(points, 12.5)
        write_csv(folder / "curve.csv", curve)

        fine = np.linspace(0, settings.env_steps, 4 * points + 1).round()[1:]
        speed = target * (1 - np.exp(-3 * fine / settings.env_steps)) * 0.9
        progress = {"iteration": np.arange(1, len(fine) + 1), "env_steps": fine, "updates": fine * 0.9}
        progress |= {"episodes": fine // STEPS} | episode_columns(settings, speed, random, mean=True)
        progress = {"return_mean" if name == "return" else name: values for name, values in progress.items()}
        episode_data = [name for name in progress if name.startswith("term/") or name in ("return_mean", "residual")]
        for name in episode_data:
            progress[name] = np.where(fine < 2 * STEPS, np.nan, progress[name])  # no episode has finished yet
        progress["loss/critic_loss"] = np.exp(-fine / settings.env_steps)
        write_csv(folder / "progress.csv", progress)

        active = steps * 0.004 * (1 + 0.05 * random.random())
        clock = {"env_steps": steps, "updates": steps * 0.9, "wall_s": active * 1.2, "active_s": active}
        clock |= {"learner_wait_s": active * 0.02, "evaluation_s": active * 0.15}
        write_csv(folder / "timing.csv", clock)
        write_json(folder / "timing.json", machine(active[-1], steps[-1]))

        final = learned[-1] + 0.05 * random.standard_normal(EPISODES)
        evaluation = {"episode": np.arange(EPISODES), "terminated": np.zeros(EPISODES), "truncated": np.ones(EPISODES)}
        evaluation |= episode_columns(settings, final, random, mean=False) | yardstick_columns(settings, final, random)
        write_csv(folder / "evaluation.csv", evaluation)
        write_json(folder / "summary.json", {"env_steps": int(steps[-1]), "deterministic": True})
        write_json(folder / "evaluation.json", {"episodes": EPISODES, "seed": 1000})
        write_policy(folder / "policy.safetensors", settings)
        return folder

    def write_all(self, **options: object) -> "Folder":
        for arm, seed in self.experiment.runs:
            self.write(arm, seed, **options)  # type: ignore[arg-type]
        return self

    def fail(self, arm: str, seed: int, reason: str) -> None:
        folder = self.experiment.state_dir(arm, seed)
        folder.mkdir(parents=True, exist_ok=True)
        status = {"state": "failed", "env_steps": 1200, "env_steps_total": 30000, "pid": 1, "reason": reason}
        write_json(folder / "status.json", status)

    def edit(self, arm: str, seed: int, file: str, change: Callable[[dict[str, np.ndarray]], object]) -> None:
        """Change the columns of one CSV in place."""
        path = self.experiment.run_dir(arm, seed) / file
        columns = read_csv(path)
        change(columns)
        write_csv(path, columns)


def episode_columns(
    settings: RunSettings, speed: np.ndarray, random: np.random.Generator, *, mean: bool
) -> dict[str, np.ndarray]:
    """Raw term sums that depend on speed, and the return they add up to."""
    terms = envs.task(settings.task).terms
    frugal = 0.5 if "cost_power" in settings.weights else 1.0
    raw = {}
    for index, term in enumerate(terms):
        size = speed * STEPS if term.startswith("reward_") else (200 + 40 * index * np.abs(speed)) * frugal
        raw[term] = size + random.standard_normal(len(speed))
    residual = 1e-6 * random.standard_normal(len(speed))
    total = sum(weight * raw[term] for term, weight in settings.weights.items()) + residual
    length = {"length_mean" if mean else "length": np.full(len(speed), float(STEPS))}
    if mean:
        length["terminated_fraction"] = np.zeros(len(speed))
    return {"return": total, **length, **{f"term/{name}": raw[name] for name in terms}, "residual": residual}


def yardstick_columns(settings: RunSettings, speed: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    frugal = 0.5 if "cost_power" in settings.weights else 1.0
    columns = {}
    for name, yardstick in envs.task(settings.task).yardsticks.items():
        size = {"distance": 50 * speed, "speed": speed, "energy": 3000 * np.abs(speed) * frugal}
        columns[f"yardstick/{name}"] = size.get(name, 0.3 * np.ones(len(speed))) + 0.01 * random.standard_normal(
            len(speed)
        )
        assert yardstick.name == name
    return columns


def machine(active_s: float, env_steps: float) -> dict[str, object]:
    return {
        "wall_s": active_s * 1.2,
        "active_s": active_s,
        "evaluation_s": active_s * 0.15,
        "learner_wait_s": active_s * 0.02,
        "env_steps_per_s": env_steps / (active_s * 1.2),
        "updates_per_s": 0.9 * env_steps / (active_s * 1.2),
        "peak_memory_mb": 512.0,
        "device": "cpu",
        "learner_threads": 1,
        "collector_threads": 1,
        "versions": {"python": "3.11.9", "torch": "2.9.0", "numpy": "2.4.6", "mujoco": "4.0.0"},
        "host": "bench",
        "cpu": "EPYC",
        "resume_count": 0,
        "started_at": "2026-01-05T10:00:00+00:00",
        "provenance": {
            "git_commit": "0a1b2c3d",
            "git_dirty": False,
            "command": "python -m flows train",
            "lock_sha256": "ff",
        },
    }


def write_csv(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(["" if np.isnan(value) else repr(float(value)) for value in row])


def read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    values = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows])
    return {name: values[:, index].copy() for index, name in enumerate(header)}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, sort_keys=True))


def write_policy(path: Path, settings: RunSettings) -> None:
    """The header of a safetensors file without tensors."""
    about = {"task": settings.task, "weights": dict(settings.weights)}
    header = json.dumps({"__metadata__": {"seedbed": json.dumps(about, sort_keys=True)}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def make(
    directory: Path,
    *,
    arms: Mapping[str, Mapping[str, object]] = ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    title: str = "HalfCheetah: speed against energy",
) -> Folder:
    """An experiment with a params.yaml, before any run."""
    directory.mkdir(parents=True, exist_ok=True)
    planned = Experiment(
        directory=directory,
        title=title,
        arms={name: resolve(arm, where=name) for name, arm in arms.items()},
        seeds=tuple(seeds),
        evaluation=EvaluationSettings(episodes=EPISODES, seed=1000),
        report=ReportSettings(final_evaluations=3, confidence=0.95),
    )
    write_json(directory / experiments.PARAMS_FILE, {"experiment": title, "arms": dict(arms), "seeds": list(seeds)})
    return Folder(planned)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Four arms of three seeds, all finished."""
    return make(tmp_path / "experiment").write_all()


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Folder]:
    """Make an experiment of one's own below a fresh directory."""

    def plan(name: str = "experiment", **options: object) -> Folder:
        return make(tmp_path / name, **options)  # type: ignore[arg-type]

    return plan


class Built:
    """A finished report and what it was made from."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.path = build(folder.experiment)
        self.html = self.path.read_text(encoding="utf-8")
        self.summary = json.loads((self.path.parent / "summary.json").read_text(encoding="utf-8"))
        self.page = Page(self.html)


class Page(HTMLParser):
    """The page as elements and text; knows which elements are open around each piece of text."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.texts.append((data, tuple(self._open)))

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """What a reader sees, white space folded."""
        shown = [text for text, inside in self.texts if not {"style", "script", "title", "desc"} & set(inside)]
        return re.sub(r"[ \t\n]+", " ", "".join(shown))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The report of four finished arms of three seeds; to read, not to change."""
    return Built(make(tmp_path_factory.mktemp("built") / "experiment").write_all())


@pytest.fixture
def render() -> Callable[[Folder], Built]:
    return Built
