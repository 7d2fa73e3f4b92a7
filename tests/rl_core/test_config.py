"""Settings: presets are the papers', an arm overrides any field, and wrong input names what would be right."""

import subprocess
import sys
from typing import Any

import pytest

from rl_core.config import resolve
from rl_core.errors import SettingsError
from rl_core.presets import PRESETS, SacSettings, Td3Settings

ARM: dict[str, Any] = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 100_000}


def test_presets_are_the_papers() -> None:
    sac, td3 = resolve(ARM, where="arm"), resolve({**ARM, "algorithm": "td3"}, where="arm")
    assert isinstance(sac.learner, SacSettings)
    assert isinstance(td3.learner, Td3Settings)
    for settings in (sac, td3):
        assert settings.learner.actor_hidden == settings.learner.critic_hidden == (256, 256)
        assert (settings.learner.gamma, settings.learner.tau, settings.learner.learning_rate) == (0.99, 0.005, 3e-4)
        assert (settings.batch_size, settings.replay_capacity, settings.num_envs) == (256, 1_000_000, 1)
        assert settings.updates_each_vector_step == 1
    assert sac.learning_starts == 10_000
    assert (td3.learner.policy_delay, td3.learner.target_noise, td3.learner.target_noise_clip) == (2, 0.2, 0.5)


def test_presets_for_many_environments_follow_the_number_of_environments() -> None:
    fast_sac = resolve({**ARM, "algorithm": "fast_sac", "num_envs": 128}, where="arm")
    assert (fast_sac.replay_capacity, fast_sac.learning_starts, fast_sac.batch_size) == (512 * 128, 128, 8192)
    fast_td3 = resolve({**ARM, "algorithm": "fast_td3"}, where="arm")
    assert (fast_td3.num_envs, fast_td3.replay_capacity, fast_td3.learning_starts) == (64, 64_000, 640)
    for settings in (fast_sac, fast_td3):
        assert (settings.normalize_observations, settings.warmup, settings.updates_each_vector_step) == (
            True,
            "policy",
            4,
        )
    one, many = (resolve({**ARM, "algorithm": "flash_sac", "num_envs": n}, where="arm") for n in (1, 1024))
    assert (one.batch_size, one.updates_each_vector_step, one.normalize_rewards) == (512, 1, True)
    assert (many.batch_size, many.updates_each_vector_step) == (2048, 2)


@pytest.mark.parametrize("name", PRESETS)
def test_an_arm_overrides_any_field_of_any_preset(name: str) -> None:
    base = resolve({**ARM, "algorithm": name}, where="arm")
    run_defaults = dict.fromkeys(PRESETS[name].run)
    assert resolve({**ARM, "algorithm": name, "batch_size": 128}, where="arm").batch_size == 128
    for field in run_defaults.keys() - {"warmup"}:
        value = getattr(base, field)
        changed = not value if isinstance(value, bool) else value + 1
        assert getattr(resolve({**ARM, "algorithm": name, field: changed}, where="arm"), field) == changed


@pytest.mark.parametrize(
    ("num_envs", "vector_steps_per_chunk", "env_steps", "starts"),
    [(1, 1, 500, 100), (4, 3, 1203, 100), (7, 5, 999, 256)],
)
def test_total_updates_are_those_of_the_loop(
    num_envs: int, vector_steps_per_chunk: int, env_steps: int, starts: int
) -> None:
    changes = {"num_envs": num_envs, "vector_steps_per_chunk": vector_steps_per_chunk, "env_steps": env_steps}
    settings = resolve({**ARM, **changes, "learning_starts": starts, "batch_size": 32}, where="arm")
    counter = updates = done = 0
    while done < settings.vector_steps:
        chunk = min(vector_steps_per_chunk, settings.vector_steps - done)
        done += chunk
        counter += chunk * num_envs
        updates += chunk * settings.updates_each_vector_step if counter >= settings.first_update_at else 0
    assert settings.total_updates == updates


@pytest.mark.parametrize(("env_steps", "starts"), [(5_000, 1_000), (30_000, 3_000), (1_000_000, 25_000)])
def test_td3_warms_up_for_a_tenth_of_the_budget_within_bounds(env_steps: int, starts: int) -> None:
    assert resolve({**ARM, "algorithm": "td3", "env_steps": env_steps}, where="arm").learning_starts == starts


def test_one_update_per_transition_is_the_default_for_any_number_of_environments() -> None:
    assert resolve({**ARM, "num_envs": 16}, where="arm").updates_each_vector_step == 16
    assert resolve({**ARM, "num_envs": 16, "updates_per_vector_step": 8}, where="arm").updates_each_vector_step == 8


def test_an_arm_overrides_weights_and_a_zero_removes_a_term() -> None:
    arm = {**ARM, "reward": "lean", "reward_weights": {"cost_control": 0, "cost_action_rate": -0.5}}
    weights = resolve(arm, where="arm").weights
    assert set(weights) == {"reward_forward", "cost_power", "cost_action_rate"}
    assert weights["cost_action_rate"] == -0.5


def test_to_dict_holds_every_field_and_differs_when_any_setting_does() -> None:
    base = resolve(ARM, where="arm").to_dict()
    for change in ({"gamma": 0.9}, {"num_envs": 2}, {"reward_weights": {"cost_control": -1}}, {"actor_hidden": [8]}):
        assert resolve({**ARM, **change}, where="arm").to_dict() != base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "HalfCheeta-v5"}, "arm.task: unknown task 'HalfCheeta-v5'; did you mean 'HalfCheetah-v5'?"),
        ({"algorithm": "sacc"}, "arm.algorithm: unknown algorithm 'sacc'; did you mean 'sac'?"),
        ({"algorithm": 3}, "arm.algorithm: unknown algorithm 3; known: fast_sac, fast_td3, flash_sac, sac, td3"),
        ({"learning_rat": 1e-3}, "arm: unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        ({"target_noise": 0.1}, "arm: unknown key 'target_noise'"),
        ({"env_steps": "100k"}, "arm.env_steps: expected a whole number, got '100k'"),
        ({"env_steps": 0}, "arm.env_steps: expected a whole number in [1, 1e+12], got 0"),
        ({"env_steps": True}, "arm.env_steps: expected a whole number, got true"),
        ({"num_envs": None}, "arm.num_envs: expected a whole number, got null"),
        ({"gamma": {"a": [1, True], 2: None}}, "arm.gamma: expected a number, got {'a': [1, true], 2: null}"),
        ({"gamma": {1, 2}}, "arm.gamma: expected a number, got a value of another kind"),
        ({"qqqqq": 1}, "arm: unknown key 'qqqqq'; the nearest of 38 known: "),
        (
            {"algorithm": "fast_sac", "num_envs": 4},
            "batch_size (8192 from the preset) is larger than replay_capacity (2",
        ),
        ({"env_steps": 9_000}, "the larger of batch_size (256 by default) and learning_starts (10000 by default), but"),
        ({"gamma": "0.9"}, "arm.gamma: expected a number, got '0.9'"),
        ({"gamma": 1.5}, "arm.gamma: expected a number in [0, 1], got 1.5"),
        ({"gamma": float("nan")}, "arm.gamma: expected a number in [0, 1], got nan"),
        ({"actor_hidden": 256}, "arm.actor_hidden: expected a list of layer sizes such as [256, 256], got 256"),
        ({"critic_layer_norm": "yes"}, "arm.critic_layer_norm: expected true or false, got 'yes'"),
        ({"collection": "pipeline"}, "arm.collection: expected pipelined or lockstep or async, got 'pipeline'"),
        ({"reward": "fast"}, "arm.reward: HalfCheetah-v5 has no reward 'fast'; known: lean, standard"),
        (
            {"reward_weights": {"forward": 1}},
            "arm.reward_weights.forward: HalfCheetah-v5 has no term 'forward'; did you",
        ),
        ({"reward_weights": {"cost_control": 0.1}}, "the weight of cost_control must be negative or 0, got 0.1"),
        ({"reward_weights": {"reward_forward": 0, "cost_control": 0}}, "every term weighs 0"),
        ({"reward_weights": {"cost_power": -(10**400)}}, "expected a number within ±1e+20, got a number of more than"),
        ({"task_settings": {"frame_skip": 10**20}}, "expected a whole number in [1, 1000], got 100000000000000000000"),
        ({"reward_weights": [1]}, "arm.reward_weights: expected a mapping of names to values, got [1]"),
        ({"task_settings": {"frameskip": 2}}, "has no setting 'frameskip'; did you mean 'frame_skip'?"),
        ({"task_settings": {"frame_skip": 0}}, "expected a whole number in [1, 1000], got 0"),
        ({"batch_size": 512, "replay_capacity": 100}, "batch_size (512) is larger than replay_capacity (100)"),
        (
            {"num_envs": 64, "vector_steps_per_chunk": 8, "replay_capacity": 500},
            "one chunk (num_envs × vector_steps_per_chunk = 512) is larger than replay_capacity (500)",
        ),
        ({"learning_starts": 200_000}, "nothing would be learned"),
        ({"symmetry": True}, "arm.symmetry: HalfCheetah-v5 has no mirror"),
        ({"task": "Reacher-v5", "symmetry": True, "batch_size": 255}, "symmetry needs an even batch_size, got 255"),
        ({"max_updates_per_env_step": 2}, "only `collection: async` has such a limit"),
        ({"algorithm": "fast_sac", "v_min": 30}, "v_min (30) must lie below v_max (20)"),
        (
            {"algorithm": "fast_td3", "noise_scale_max": 0.1},
            "noise_scale_min (0.2) must lie below noise_scale_max",
        ),
        ({"algorithm": "flash_sac", "v_min": 0}, "support that reaches an atom beyond 0 on both sides"),
        ({"algorithm": "flash_sac", "v_min": 1, "v_max": 5}, "on both sides, got v_min 1 and v_max 5 with atoms"),
        ({"algorithm": "flash_sac", "v_min": -1e-25}, "on both sides, got v_min -1e-25 and v_max 5 with atoms 0.05"),
        ({"algorithm": "flash_sac", "v_min": -5, "v_max": -1}, "on both sides, got v_min -5 and v_max -1"),
        ({"algorithm": "fast_sac", "v_min": 1e8, "v_max": 1e8 + 1}, "101 atoms from v_min (100000000.0) to v_max"),
        ({"algorithm": "fast_sac", "v_min": -1e-40, "v_max": 1e-40}, "lie closer than float32 can tell"),
        ({"algorithm": "fast_td3", "v_min": 1e6, "v_max": 1e6 + 1, "atoms": 10_000}, "closer than float32 can tell"),
        ({"algorithm": "fast_sac", "beta2": 1}, "arm.beta2: expected a number in [0, 1), got 1"),
        ({"updates_per_vector_step": 0}, "arm.updates_per_vector_step: expected a whole number in [1, 1e+06], got 0"),
        ({"tau": 0}, "arm.tau: expected a number in (0, 1], got 0"),
        ({"learning_rate": 0.0}, "arm.learning_rate: expected a number in [1e-12, 1], got 0.0"),
        ({"learner_threads": 1024}, "arm.learner_threads: expected a whole number in [1, 128], got 1024"),
        (
            {"num_envs": 64, "vector_steps_per_chunk": 10_000},
            "one chunk (num_envs × vector_steps_per_chunk = 640000) is longer than the run's 100000 env steps",
        ),
        ({"env_steps": 10_010, "policy_delay": 20}, "the run takes 11 updates, fewer than policy_delay (20)"),
        (
            {"collection": "async", "max_updates_per_env_step": 1e-6},
            "the run takes 0 updates, fewer than policy_delay (1): its policy would not be learned",
        ),
        ({"algorithm": "flash_sac", "actor_hidden": [64]}, "arm: unknown key 'actor_hidden'"),
        ({"warmup": "random"}, "arm.warmup: expected uniform or policy, got 'random'"),
        ({"device": "cuda:0"}, "arm.device: expected cpu or cuda, got 'cuda:0'"),
        ({"device": 0}, "arm.device: expected cpu or cuda, got 0"),
        ({"compile": True}, "arm.compile: needs `device: cuda`, got 'cpu'"),
        ({"cuda_graph": True}, "arm.cuda_graph: needs `device: cuda`, got 'cpu'"),
        ({"algorithm": "fast_sac", "bf16": True}, "arm.bf16: needs `device: cuda`, got 'cpu'"),
        (
            {"device": "cuda", "bf16": True},
            "arm.bf16: sac computes in float32 alone; bf16 is for fast_sac, fast_td3, flash_sac",
        ),
        ({"device": "cuda", "compile": 1}, "arm.compile: expected true or false, got 1"),
    ],
)
def test_wrong_input_gives_one_clear_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({**ARM, **change}, where="arm")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_ends_of_a_range_that_work_are_accepted() -> None:
    for change in ({"gamma": 0}, {"gamma": 1}, {"tau": 1}, {"learning_rate": 1e-12}):
        resolve({**ARM, **change}, where="arm")
    for change in ({"beta2": 0}, {"v_min": 0, "v_max": 1e9}, {"v_min": -1e-3, "v_max": 1e-3, "atoms": 10_000}):
        resolve({**ARM, "algorithm": "fast_sac", **change}, where="arm")


def test_a_value_is_shown_short_however_large_or_deep_it_is() -> None:
    bomb: list[Any] = ["lol"] * 9
    for _ in range(40):
        bomb = [bomb] * 9  # 9^41 words
    for value in (bomb, {"a": bomb}, "x" * 10**6, 10**6000, [1] * 10**6, {((1,) * 10**5,): 1}):
        with pytest.raises(SettingsError) as caught:
            resolve({**ARM, "gamma": value}, where="arm")
        assert len(str(caught.value)) < 150
    with pytest.raises(SettingsError) as caught:
        resolve({**ARM, "x\n" * 10**5: 1}, where="arm")
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_the_device_is_the_cpu_unless_an_arm_says_otherwise_and_only_there_bytes_repeat(name: str) -> None:
    base = resolve({**ARM, "algorithm": name}, where="arm")
    assert (base.device, base.compile, base.cuda_graph, base.bf16, base.reproducible) == ("cpu", *[False] * 3, True)
    fast = {"device": "cuda", "compile": True, "cuda_graph": True, "bf16": name not in ("sac", "td3")}
    settings = resolve({**ARM, "algorithm": name, **fast}, where="arm")
    assert {key: settings.to_dict()[key] for key in fast} == fast
    assert settings.irreproducible_because == "trains on a GPU"
    assert not settings.reproducible


@pytest.mark.parametrize("name", PRESETS)
def test_every_process_has_one_thread_unless_an_arm_says_otherwise(name: str) -> None:
    base = resolve({**ARM, "algorithm": name}, where="arm")
    assert (base.learner_threads, base.collector_threads) == (1, 1)  # however many cores the machine has


@pytest.mark.parametrize("key", ["task", "algorithm", "env_steps"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(SettingsError, match=f"the key '{key}' is missing"):
        resolve({k: v for k, v in ARM.items() if k != key}, where="arm")


def test_every_numeric_field_has_a_range() -> None:
    for algorithm in PRESETS:
        settings = resolve({**ARM, "algorithm": algorithm}, where="arm").to_dict()
        for name, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                with pytest.raises(SettingsError, match=f"arm.{name}: expected"):
                    resolve({**ARM, "algorithm": algorithm, name: -(10**13)}, where="arm")


def test_settings_load_without_torch_and_mujoco() -> None:
    code = "import sys, rl_core.config; sys.exit(any(m in sys.modules for m in ('torch', 'mujoco', 'gymnasium')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
