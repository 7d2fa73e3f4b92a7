"""The command line. Each verb imports what it needs when it runs: `--help` waits for nothing."""

import argparse
import errno
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DONE, FAILED, WRONG_INPUT = 0, 1, 2
Verb = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 done, 1 failed, 2 wrong input, 130 interrupted, 143 terminated."""
    if os.environ.get("DVC_STAGE"):
        _bind_to_dvc()
    given = _parser().parse_args(arguments)
    given.directory = Path(given.directory).resolve()
    from flows.stages import InUseError
    from rl_core.errors import Interrupted, SettingsError

    verb: Verb = given.run
    warnings.showwarning = _warn
    try:
        return verb(given)
    except (SettingsError, InUseError) as error:
        return _fail(str(error), WRONG_INPUT if isinstance(error, SettingsError) else FAILED)
    except Interrupted as interruption:
        then = "goes on from the last checkpoint" if interruption.resumable else "starts over: no checkpoint stands yet"
        print(f"interrupted; the same command {then}", file=sys.stderr)
        return 128 + interruption.signum
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone
        return FAILED
    except Exception as error:  # noqa: BLE001 - any failure is one clear line
        return _fail(_with_traceback(given, error), FAILED)


def _bind_to_dvc() -> None:
    """Have a stage command end with the dvc that started it, even if that was killed in the command's first moment."""
    from flows.processes import die_with_parent, is_orphan

    die_with_parent()
    if is_orphan():
        raise SystemExit(128 + signal.SIGTERM)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _with_traceback(given: argparse.Namespace, error: Exception) -> str:
    """Keep the whole story in a file, tell its first line."""
    from flows.experiment import PARAMS_FILE, STATE_FOLDER

    subject = (given.arm, given.seed) if isinstance(given.arm, str) else ()
    name = "-".join(map(str, (given.verb, *subject)))
    log = given.directory / STATE_FOLDER / "logs" / f"{name}.error.log"
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    expected = type(error).__module__.startswith(("rl_core.", "flows."))
    line = line if expected else f"{type(error).__name__}: {line}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        line = f"{error.filename or given.directory}: the disk is full"
    if not (given.directory / PARAMS_FILE).is_file():
        return line  # no experiment, no place for its logs
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)))
    except OSError:
        return line
    return f"{line}; details: {log}"


def _train(given: argparse.Namespace) -> int:
    from flows import experiment, stages

    loaded = experiment.load(given.directory)
    stages.train(loaded, given.arm, given.seed, fresh=given.fresh, trace=given.trace, tensorboard=given.tensorboard)
    return DONE


def _evaluate(given: argparse.Namespace) -> int:
    from flows import experiment, stages

    stages.evaluate(experiment.load(given.directory), given.arm, given.seed)
    return DONE


def _report(given: argparse.Namespace) -> int:
    from flows import experiment, stages

    print(stages.report(experiment.load(given.directory)))
    return DONE


def _sweep(given: argparse.Namespace) -> int:
    from flows import environment, experiment

    environment.use(given.directory)
    loaded = experiment.load(given.directory)
    from flows.conduct import conduct

    return conduct(loaded, arms=given.arm, seeds=given.seed, jobs=given.jobs, fresh=given.fresh)


def _status(given: argparse.Namespace) -> int:
    from flows import experiment, status

    print(status.table(experiment.load(given.directory)))
    return DONE


def _check(given: argparse.Namespace) -> int:
    from flows import check, experiment

    print(check.describe(experiment.load(given.directory)))
    return DONE


def _verify(given: argparse.Namespace) -> int:
    from flows import experiment, verify

    loaded = experiment.load(given.directory)
    expected = verify.expected_differences(loaded, given.arm, given.seed)
    if expected:
        print(f"note: {expected}", flush=True)
    found = verify.verify(loaded, given.arm, given.seed)
    for artifact in found:
        print(
            f"differs  {artifact.name}: {artifact.difference}" if artifact.difference else f"equal    {artifact.name}"
        )
    equal = sum(not artifact.difference for artifact in found)
    print(f"{equal} of {len(found)} artifacts are equal, byte for byte")
    return DONE if equal == len(found) else FAILED


def _trace(given: argparse.Namespace) -> int:
    from flows import experiment, trace

    print(trace.describe(experiment.load(given.directory), given.arm, given.seed))
    return DONE


def _export(given: argparse.Namespace) -> int:
    from flows import experiment
    from flows.export import export

    obs_dim, action_dim = export(experiment.load(given.directory), given.arm, given.seed, onnx=given.onnx)
    print(f"{given.onnx}: observation (batch, {obs_dim}) -> action (batch, {action_dim}) in [-1, 1]")
    return DONE


def _ui(given: argparse.Namespace) -> int:
    from flows import environment, experiment

    environment.use(given.directory)
    loaded = experiment.load(given.directory)
    from flows.ui import serve

    return serve(loaded, port=given.port, report_port=given.report_port)


def _init(given: argparse.Namespace) -> int:
    from flows import workspace

    workspace.initialise(given.folder, params=given.params)
    print(f"{given.folder}: edit params.yaml, then run: python -m flows -C {shlex.quote(str(given.folder))} sweep")
    return DONE


def _parser() -> argparse.ArgumentParser:
    folder = _folder(argparse.SUPPRESS)  # on a verb: not to undo what stood before it
    parser = argparse.ArgumentParser(
        prog="python -m flows",
        description="Run the experiment that params.yaml describes and report on it.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted, 143 terminated.",
        parents=[_folder(".")],
        allow_abbrev=False,
    )
    parser.set_defaults(arm=None, seed=None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, run: Verb, text: str, more: str = "") -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}", parents=[folder], allow_abbrev=False
        )
        added.set_defaults(run=run)
        return added

    train = verb("train", _train, "train one run", "An interrupted run is resumed; a complete one is left alone.")
    _one_run(train)
    _fresh(train, "start over, even if the run is complete or interrupted")
    train.add_argument("--trace", action="store_true", help="record a timeline of this session; see the verb trace")
    train.add_argument("--tensorboard", action="store_true", help="write scalars to .seedbed/tensorboard/ as well")
    _one_run(verb("evaluate", _evaluate, "evaluate one run's final policy"))
    verb("report", _report, "write the report from what exists", "Prints the path of its page.")
    sweep = verb(
        "sweep",
        _sweep,
        "run what is missing or stale, concurrently, then report",
        "Finished runs are recorded with DVC, so that a second sweep has nothing to do.",
    )
    sweep.add_argument("--arm", action="append", default=[], metavar="GLOB", help="only these arms; repeatable")
    sweep.add_argument("--seed", action="append", default=[], type=int, metavar="N", help="only this seed; repeatable")
    sweep.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one for each core)")
    _fresh(sweep, "run again what is complete")
    verb("status", _status, "show how every run stands, and why it is stale")
    verb("check", _check, "show what params.yaml resolves to, and what it will cost")
    _one_run(
        verb(
            "verify",
            _verify,
            "train a run again beside the recorded one and compare every byte",
            "Exits with 1 if anything differs.",
        )
    )
    _one_run(
        verb(
            "trace",
            _trace,
            "show where the time of a traced training went",
            "Record one with train ARM SEED --trace; the file opens in Perfetto, too.",
        )
    )
    export = verb(
        "export",
        _export,
        "write a run's final policy for other runtimes",
        "It is deterministic, and normalises its observations itself.",
    )
    _one_run(export)
    export.add_argument("--onnx", metavar="FILE", type=Path, required=True, help="where to; a file there is replaced")
    ui = verb("ui", _ui, "serve the sweep as a form, its history and the report, until Ctrl-C")
    ui.add_argument("--port", type=int, metavar="N", help="of the Prefect UI (default: 4200)")
    ui.add_argument("--report-port", type=int, metavar="N", help="of the report (default: 4201)")
    init = verb("init", _init, "make a new experiment's folder", "It may lie in or outside the repository.")
    init.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    init.add_argument("--params", metavar="FILE", type=Path, help="start from this params.yaml, not from the starter")
    return parser


def _folder(default: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "-C",
        dest="directory",
        metavar="DIR",
        default=default,
        help="the experiment's folder (default: the current one)",
    )
    return parser


def _one_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arm", metavar="ARM", help="an arm of params.yaml")
    parser.add_argument("seed", metavar="SEED", type=int, help="a seed of params.yaml")


def _fresh(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--fresh", action="store_true", help=text)
