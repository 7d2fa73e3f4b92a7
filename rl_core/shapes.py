"""How large a learner's inputs and outputs are, and how long it will learn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What a learner must know of its task and its run."""

    obs: int  # numbers in an observation
    action: int  # numbers in an action
    privileged: int = 0  # further numbers that critics alone observe
    updates: int = 1  # gradient updates of the whole run, for schedules

    @property
    def critic_obs(self) -> int:
        """Numbers that a critic observes."""
        return self.obs + self.privileged
