"""The algorithms' settings: one frozen class per preset, every field with its unit.

Sources stand beside the fields of SAC and TD3; the others' values are those of the paper that the class names and of
its authors' code, field by field not told apart.

`PRESETS` names them and says what else a preset fixes of a run, such as its batch size. An arm overrides any field.
Importing this module loads neither torch nor MuJoCo.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SacSettings:
    """SAC with automatic temperature (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications")."""

    gamma: float = 0.99  # discount; table 1
    tau: float = 0.005  # share of the online weights in each target average; table 1
    learning_rate: float = 3e-4  # Adam, for actor, critics and temperature; table 1
    policy_delay: int = 1  # critic updates per actor update, counted over the whole run
    actor_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU; table 1
    critic_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU, two critics; table 1
    critic_layer_norm: bool = False  # layer norm before each ReLU of the critics (not in the paper)
    initial_alpha: float = 1.0  # temperature at the start
    target_entropy: float | None = None  # nats; None means −|A|, section 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Td3Settings:
    """TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods")."""

    gamma: float = 0.99  # discount; appendix C
    tau: float = 0.005  # share of the online weights in each target average; section 6.1
    learning_rate: float = 3e-4  # Adam, for actor and critics; the authors' code
    policy_delay: int = 2  # critic updates per actor and target update, counted over the whole run; section 5.2
    actor_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU; the authors' code
    critic_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU, two critics; the authors' code
    critic_layer_norm: bool = False  # layer norm before each ReLU of the critics (not in the paper)
    exploration_noise: float = 0.1  # standard deviation, in units of the action range ±1; section 6.1
    target_noise: float = 0.2  # standard deviation of the target policy's noise; section 5.3
    target_noise_clip: float = 0.5  # bound of that noise; section 5.3


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSacSettings:
    """SAC for many environments and large batches (Seo et al. 2025, "Learning Sim-to-Real Humanoid Locomotion in 15
    Minutes"): categorical critics with layer norm, the mean of the pair instead of its minimum."""

    gamma: float = 0.97  # discount
    tau: float = 0.125  # share of the online weights in each target average
    learning_rate: float = 3e-4  # AdamW, for actor, critics and temperature
    beta2: float = 0.95  # AdamW, decay of the second moment
    weight_decay: float = 1e-3  # AdamW, per step and unit of learning rate
    policy_delay: int = 4  # critic updates per actor update, counted over the whole run
    actor_hidden: tuple[int, ...] = (512, 256, 128)  # units per layer, layer norm and SiLU
    critic_hidden: tuple[int, ...] = (768, 384, 192)  # units per layer, layer norm and SiLU, two critics
    atoms: int = 101  # of each critic's distribution
    v_min: float = -20.0  # lowest atom, discounted return
    v_max: float = 20.0  # highest atom, discounted return
    initial_alpha: float = 0.01  # temperature at the start
    target_entropy: float | None = None  # nats; None means 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FastTd3Settings:
    """TD3 for many environments and large batches (Seo et al. 2025, "FastTD3: Simple, Fast, and Capable Reinforcement
    Learning for Humanoid Control"): categorical critics, a noise scale of its own for every environment."""

    gamma: float = 0.97  # discount
    tau: float = 0.1  # share of the online weights in each target average
    learning_rate: float = 3e-4  # AdamW, for actor and critics
    beta2: float = 0.999  # AdamW, decay of the second moment
    weight_decay: float = 0.1  # AdamW, per step and unit of learning rate
    policy_delay: int = 2  # critic updates per actor update, counted over the whole run
    actor_hidden: tuple[int, ...] = (512, 256, 128)  # units per layer, ReLU
    critic_hidden: tuple[int, ...] = (1024, 512, 256)  # units per layer, ReLU, two critics
    atoms: int = 101  # of each critic's distribution
    v_min: float = -10.0  # lowest atom, discounted return
    v_max: float = 10.0  # highest atom, discounted return
    noise_scale_min: float = 0.2  # smallest exploration noise of an environment, in units of the action range ±1
    noise_scale_max: float = 0.8  # largest; drawn log-uniformly, again when the environment's episode ends
    target_noise: float = 0.2  # standard deviation of the target policy's noise
    target_noise_clip: float = 0.5  # bound of that noise


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashSacSettings:
    """FlashSAC (Kim et al. 2026): SAC on unit-norm residual networks with batch norm and categorical critics."""

    gamma: float = 0.99  # discount
    tau: float = 0.01  # share of the online weights in each target average; parameters only
    learning_rate: float = 3e-4  # Adam at the start, for actor, critics and temperature
    final_learning_rate: float = 1.5e-4  # at the end of the budget; cosine in between
    policy_delay: int = 2  # critic updates per actor update, counted over the whole run
    actor_width: int = 128  # units of the residual stream; blocks widen it four times
    critic_width: int = 256  # the same for each of the two critics
    blocks: int = 2  # residual blocks of each network
    batch_norm_momentum: float = 0.01  # share of a batch in the running statistics
    atoms: int = 101  # of each critic's distribution
    v_min: float = -5.0  # lowest atom, discounted and normalised return
    v_max: float = 5.0  # highest atom, discounted and normalised return
    initial_alpha: float = 0.01  # temperature at the start
    target_entropy: float | None = None  # nats; None means |A|·½·ln(2πe·0.15²)
    noise_exponent: float = 2.0  # exploration noise is held for k steps, P(k) ∝ k^−exponent
    noise_repeats_max: int = 16  # largest k


CategoricalSettings = FastSacSettings | FastTd3Settings | FlashSacSettings
AlgorithmSettings = SacSettings | Td3Settings | FastSacSettings | FastTd3Settings | FlashSacSettings
RunDefaults = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preset:
    """An algorithm's settings, and what it changes of a run's defaults: a value, or a function of the run's fields."""

    settings: type[AlgorithmSettings]
    run: Mapping[str, object | Callable[[RunDefaults], object]] = field(default_factory=dict)
    bf16: bool = False  # whether its networks' products may be bfloat16: critics that classify bear it


def _td3_learning_starts(run: RunDefaults) -> int:
    # The authors start after 25 000 steps of 1M, or 1 000 on the short tasks; a tenth of the budget in between.
    return min(25_000, max(1_000, int(run["env_steps"]) // 10))


def _per_environment(count: int) -> Callable[[RunDefaults], int]:
    return lambda run: count * int(run["num_envs"])


def _one_or_many(one: int, many: int) -> Callable[[RunDefaults], int]:
    return lambda run: one if run["num_envs"] == 1 else many


PRESETS: Mapping[str, Preset] = {
    "sac": Preset(SacSettings),
    "td3": Preset(Td3Settings, {"learning_starts": _td3_learning_starts}),
    "fast_sac": Preset(
        FastSacSettings,
        {
            "num_envs": 64,
            "batch_size": 8192,
            "updates_per_vector_step": 4,
            "replay_capacity": _per_environment(512),
            "learning_starts": _per_environment(1),
            "warmup": "policy",
            "normalize_observations": True,
        },
        bf16=True,
    ),
    "fast_td3": Preset(
        FastTd3Settings,
        {
            "num_envs": 64,
            "batch_size": 8192,
            "updates_per_vector_step": 4,
            "replay_capacity": _per_environment(1000),
            "learning_starts": _per_environment(10),
            "warmup": "policy",
            "normalize_observations": True,
        },
        bf16=True,
    ),
    "flash_sac": Preset(
        FlashSacSettings,
        {
            "batch_size": _one_or_many(512, 2048),
            "updates_per_vector_step": _one_or_many(1, 2),
            "normalize_rewards": True,
        },
        bf16=True,
    ),
}
