"""The three ways a run ends other than well."""


class SettingsError(ValueError):
    """Wrong input: the message says what is wrong, where, and what would be right."""


class TrainingError(RuntimeError):
    """A run failed: non-finite numbers, a dead or hung collector, a full disk."""


class NotFiniteError(TrainingError):
    """A loss or an action is no longer a number."""


class Interrupted(Exception):  # noqa: N818 - an interruption is not an error
    """A signal asked the run to stop."""

    def __init__(self, signum: int, *, resumable: bool = False) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
        self.resumable = resumable  # whether a checkpoint stands
