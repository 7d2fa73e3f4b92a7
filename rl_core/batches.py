"""From rows of the ring to batches: mirrored, normalised and scaled as the run's settings say."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rl_core.arrays import AnyArray
from rl_core.config import RunSettings
from rl_core.envs.task import Mirror, Reflection
from rl_core.networks import Params
from rl_core.normalization import OBS_MEAN, OBS_STD, ObservationNormalizer, RewardScaler
from rl_core.replay import Batch, Layout, ReplayRing, Rows
from rl_core.trace import span

_ROWS_PER_GATHER = 8_192  # rows drawn from the ring at once; bounds the memory of a long block


class Batches:
    """Draws a run's batches, and keeps the statistics that they are normalised with.

    Args:
        settings: of the run.
        ring: where the rows are.
        mirror: the task's symmetry; needed if the settings ask for it.
        generator: decides which rows are drawn; batches are made on its device.
        source: where rows are drawn from, on that device; by default the ring.
    """

    def __init__(
        self,
        settings: RunSettings,
        ring: ReplayRing,
        *,
        mirror: Mirror | None,
        generator: torch.Generator,
        source: Rows | None = None,
    ) -> None:
        layout, device = ring.layout, generator.device
        self.generator = generator
        self._settings, self._ring = settings, ring
        self._source: Rows = ring if source is None else source
        self._reflect = _row_reflection(layout, mirror, device) if settings.symmetry and mirror else None
        self._observations = (
            ObservationNormalizer(layout.critic_obs_dim, device) if settings.normalize_observations else None
        )
        self._rewards = (
            RewardScaler(settings.num_envs, gamma=settings.learner.gamma, limit=settings.largest_value)
            if settings.normalize_rewards
            else None
        )

    def learn_statistics(self, start: int, stop: int) -> None:
        """Take rows start … stop − 1, whole vector steps, into the statistics."""
        if self._observations is None and self._rewards is None:
            return
        rows, layout = self._ring.newest(start, stop), self._ring.layout
        rows = rows[len(rows) % self._settings.num_envs :]  # more than a capacity: the oldest vector step is cut
        if self._observations is not None:
            self._observations.update(rows[:, : layout.critic_obs_dim])
        if self._rewards is not None:
            column = layout.reward_column
            steps = rows[:, column : column + 3].reshape(-1, self._settings.num_envs, 3)
            self._rewards.update(steps[..., 0], (steps[..., 1] + steps[..., 2]) > 0)

    def draw(self, count: int, stop: int) -> Iterator[Batch]:
        """Draw `count` batches from the rows before `stop`."""
        size = self._settings.batch_size // 2 if self._reflect is not None else self._settings.batch_size
        for portion in _portions(count, max(1, _ROWS_PER_GATHER // size)):
            with span("sample"):
                rows = self._source.sample(stop, portion * size, self.generator)
            for part in torch.split(rows, size):
                with span("prepare"):
                    batch = self._ring.unpack(self._prepared(part))
                yield batch

    @property
    def published(self) -> Params:
        """What the collector and a policy need to see observations as the learner does."""
        if self._observations is None:
            return {}
        return {name: tensor[: self._ring.layout.obs_dim] for name, tensor in self._observations.published.items()}

    def state(self) -> dict[str, AnyArray]:
        """Return the statistics; the generator's state stands apart."""
        parts = {"observations": self._observations, "rewards": self._rewards}
        return {f"{part}.{n}": array for part, kept in parts.items() if kept for n, array in kept.state().items()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned."""
        for part, kept in (("observations", self._observations), ("rewards", self._rewards)):
            if kept is not None:
                kept.restore({name.partition(".")[2]: a for name, a in state.items() if name.startswith(f"{part}.")})

    def _prepared(self, rows: Tensor) -> Tensor:
        """Return rows as the networks see them; `rows` is a copy and may be changed."""
        if self._reflect is not None:
            permutation, signs = self._reflect
            rows = torch.cat((rows, rows[:, permutation] * signs))
        if self._observations is not None:
            dim, published = self._ring.layout.critic_obs_dim, self._observations.published
            for part in (rows[:, :dim], rows[:, -dim:]):
                part.sub_(published[OBS_MEAN]).div_(published[OBS_STD])
        if self._rewards is not None:
            rows[:, self._ring.layout.reward_column].div_(self._rewards.divisor)
        return rows


def _row_reflection(layout: Layout, mirror: Mirror, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the signed permutation that mirrors a whole row; reward and flags stay as they are."""
    observation = [(mirror.observation, layout.obs_dim), (mirror.privileged, layout.privileged_dim)]
    flags = Reflection((1, 1, 1))
    parts = [*observation, (mirror.action, layout.action_dim), (flags, 3), *observation]
    permutation: list[int] = []
    signs: list[int] = []
    for reflection, size in parts:
        order = reflection.permutation or tuple(range(size))
        if len(reflection.signs) != size or sorted(order) != list(range(size)):
            raise ValueError(f"a mirror of {size} coordinates cannot be {reflection}")
        start = len(permutation)
        permutation += [start + place for place in order]
        signs += reflection.signs
    return torch.tensor(permutation, device=device), torch.tensor(signs, dtype=torch.float32, device=device)


def _portions(total: int, largest: int) -> Iterator[int]:
    while total > 0:
        yield min(total, largest)
        total -= largest
