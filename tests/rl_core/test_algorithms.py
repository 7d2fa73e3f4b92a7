"""The mathematics of the learners against independent references."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_core.algorithms import ALGORITHMS, flash_sac, sac, td3
from rl_core.critics import cross_entropy, expectation, project_categorical, twin, twin_q
from rl_core.networks import gaussian_head, init_mlp, init_twin, mlp, polyak_, squashed_sample
from rl_core.optimizer import Adam
from rl_core.presets import (
    PRESETS,
    FastSacSettings,
    FastTd3Settings,
    FlashSacSettings,
    SacSettings,
    Td3Settings,
)
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.unit_networks import trainable, unit_net

SETTINGS: dict[str, Any] = {
    "sac": SacSettings(actor_hidden=(16, 16), critic_hidden=(16, 16), learning_rate=1e-3),
    "td3": Td3Settings(actor_hidden=(16, 16), critic_hidden=(16, 16), learning_rate=1e-3),
    "fast_sac": FastSacSettings(actor_hidden=(16, 16), critic_hidden=(16, 16), learning_rate=1e-3, policy_delay=1),
    "fast_td3": FastTd3Settings(actor_hidden=(16, 16), critic_hidden=(16, 16), learning_rate=1e-3),
    "flash_sac": FlashSacSettings(
        actor_width=32, critic_width=32, learning_rate=1e-3, final_learning_rate=1e-5, policy_delay=1
    ),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(name: str, **changes: Any) -> Any:
    settings = type(SETTINGS[name])(**{f: getattr(SETTINGS[name], f) for f in SETTINGS[name].__slots__} | changes)
    return ALGORITHMS[name].build(settings, Shapes(obs=3, action=2, updates=1000), network_seed=1, noise_seed=2)


def batch(size: int = 64, seed: int = 0, **fields: torch.Tensor) -> Batch:
    g = generator(seed)
    made = {
        "obs": torch.randn(size, 3, generator=g),
        "action": torch.rand(size, 2, generator=g) * 2 - 1,
        "reward": torch.randn(size, generator=g),
        "bootstrap": (torch.rand(size, generator=g) > 0.2).float(),
        "next_obs": torch.randn(size, 3, generator=g),
    }
    made |= fields
    return Batch(critic_obs=made["obs"], next_critic_obs=made["next_obs"], **made)


@torch.no_grad()
def first_q(name: str, learner: Any, data: Batch) -> torch.Tensor:
    """Return the first critic's value of the batch's own actions."""
    if name in ("sac", "td3"):
        return twin_q(learner.critic, data.critic_obs, data.action)[0]
    if name == "flash_sac":
        return expectation(flash_sac._twin(learner.critic, data.critic_obs, data.action)[0], learner.atoms)
    activation = torch.nn.functional.silu if name == "fast_sac" else torch.relu
    logits = twin(learner.critic, data.critic_obs, data.action, activation=activation)[0]
    return expectation(logits.softmax(-1), learner.atoms)


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("shape", [(5, 2), (4, 3, 2), (2,)])
def test_squashed_log_density_is_that_of_the_transformed_normal(shape: tuple[int, ...]) -> None:
    mean, log_std, noise = (torch.randn(shape, generator=generator(i), dtype=torch.float64) for i in range(3))
    action, log_prob = squashed_sample(mean, log_std, noise)
    base = Independent(Normal(mean, log_std.exp()), 1)
    reference = TransformedDistribution(base, [TanhTransform(cache_size=1)])
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, reference.log_prob(action), rtol=1e-7, atol=1e-7)


def test_squashed_log_density_stays_finite_where_tanh_saturates() -> None:
    _, log_prob = squashed_sample(torch.tensor([50.0, -50.0]), torch.zeros(2), torch.zeros(2))
    assert torch.isfinite(log_prob)


def test_log_std_stays_in_its_bounds() -> None:
    _, log_std = gaussian_head(torch.tensor([[0.0, 0.0, -100.0, 100.0]]))
    torch.testing.assert_close(log_std, torch.tensor([[-5.0, 2.0]]))


@pytest.mark.parametrize("batch_shape", [(7,), (), (2, 1, 3)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_perceptron_equals_torch_modules(layer_norm: bool, batch_shape: tuple[int, ...]) -> None:
    params = init_mlp((3, 8, 6, 2), layer_norm=layer_norm, generator=generator())
    layers: list[torch.nn.Module] = []
    for i, (n_in, n_out) in enumerate([(3, 8), (8, 6), (6, 2)]):
        linear = torch.nn.Linear(n_in, n_out)
        linear.load_state_dict({"weight": params[f"{i}.weight"], "bias": params[f"{i}.bias"]})
        layers += (
            [linear] if i == 2 else [linear, *([torch.nn.LayerNorm(n_out)] if layer_norm else []), torch.nn.ReLU()]
        )
    x = torch.randn(*batch_shape, 3, generator=generator(1))
    torch.testing.assert_close(mlp(params, x), torch.nn.Sequential(*layers)(x))


def test_twin_critics_are_independent() -> None:
    params = init_twin((5, 8, 1), layer_norm=False, generator=generator())
    q1, q2 = twin_q(params, torch.randn(4, 3, generator=generator(1)), torch.randn(4, 2, generator=generator(2)))
    assert q1.shape == q2.shape == (4,)
    assert not torch.allclose(q1, q2)


def test_target_average_is_the_textbook_formula() -> None:
    target, online = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 6.0])}
    polyak_(target, online, 0.25)
    torch.testing.assert_close(target["a"], torch.tensor([1.5, 3.0]))


def test_adam_moves_only_its_own_parameters_and_equals_torchs() -> None:
    ours = {"w": torch.tensor([1.0, -2.0], requires_grad=True)}
    other = torch.tensor([2.0, 3.0], requires_grad=True)
    reference = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer, torchs = Adam(ours, 0.1), torch.optim.Adam([reference], lr=0.1)
    for _ in range(5):
        optimizer.step((ours["w"].square() * other).sum())
        torchs.zero_grad()
        (reference.square() * other.detach()).sum().backward()
        torchs.step()
    torch.testing.assert_close(ours["w"], reference.data)
    assert other.grad is None


def test_sac_critic_target_is_soft_and_stops_at_true_ends() -> None:
    learner = build("sac", learning_rate=0.0)
    data, alpha = batch(), 1.0
    noise = torch.randn(64, 2, generator=generator(2))
    with torch.no_grad():
        next_action, log_prob = squashed_sample(*gaussian_head(mlp(learner.actor, data.next_obs)), noise)
        q_next = torch.minimum(*twin_q(learner.target_critic, data.next_obs, next_action))
        y = data.reward + 0.99 * data.bootstrap * (q_next - alpha * log_prob)
        q1, q2 = twin_q(learner.critic, data.obs, data.action)
        expected = ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()
    torch.testing.assert_close(sac.update(learner, data)["critic_loss"], expected)


def test_td3_target_uses_clipped_noise_on_the_target_actor() -> None:
    learner = build("td3", learning_rate=0.0, target_noise=3.0)
    data = batch()
    with torch.no_grad():
        noise = (3.0 * torch.randn(64, 2, generator=generator(2))).clamp(-0.5, 0.5)
        next_action = (torch.tanh(mlp(learner.target_actor, data.next_obs)) + noise).clamp(-1, 1)
        y = data.reward + 0.99 * data.bootstrap * torch.minimum(
            *twin_q(learner.target_critic, data.next_obs, next_action)
        )
        q1, q2 = twin_q(learner.critic, data.obs, data.action)
        expected = ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()
    torch.testing.assert_close(td3.update(learner, data)["critic_loss"], expected)


def test_td3_actor_climbs_the_first_critic() -> None:
    learner = build("td3", policy_delay=1)
    data = batch()

    def value() -> float:
        with torch.no_grad():
            x = torch.cat((data.obs, torch.tanh(mlp(learner.actor, data.obs))), -1)
            return float(mlp(learner.critic, x, "q1.").mean())

    loss = td3._update_actor(learner, data)["actor_loss"]
    before = -float(loss)
    assert value() > before


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_policy_delay_counts_updates_over_the_whole_run(name: str, delay: int) -> None:
    learner = build(name, policy_delay=delay)
    for n in range(1, 8):
        before = copies(learner.actor)
        ALGORITHMS[name].update(learner, batch(seed=n))
        moved = any(not torch.equal(before[k], learner.actor[k]) for k in before)
        assert moved == (n % delay == 0)


def test_td3_targets_move_only_with_the_actor() -> None:
    learner = build("td3", policy_delay=2)
    for n in range(1, 5):
        before = copies(learner.target_critic) | copies(learner.target_actor)
        td3.update(learner, batch(seed=n))
        after = learner.target_critic | learner.target_actor
        assert any(not torch.equal(before[k], after[k]) for k in before) == (n % 2 == 0)


@pytest.mark.parametrize(
    ("name", "updates", "tolerance"), [("sac", 2000, 0.15), ("fast_sac", 1500, 0.15), ("flash_sac", 2200, 0.3)]
)
def test_temperature_settles_where_entropy_meets_its_target(name: str, updates: int, tolerance: float) -> None:
    constant = {"final_learning_rate": 3e-3, "critic_width": 16, "blocks": 1} if name == "flash_sac" else {}
    learner = build(name, target_entropy=-1.0, learning_rate=3e-3, policy_delay=1, initial_alpha=0.2, **constant)
    data = batch(128)
    # A reward against large actions: the temperature alone decides how wide the policy spreads.
    data = batch(128, bootstrap=torch.zeros(128), reward=-data.action.square().sum(-1))
    update = ALGORITHMS[name].update
    entropies = [float(update(learner, data)["entropy"]) for _ in range(updates)]
    assert sum(entropies[-200:]) / 200 == pytest.approx(-1.0, abs=tolerance)


@pytest.mark.parametrize("name", PRESETS)
def test_critic_learns_the_value_of_a_one_step_problem(name: str) -> None:
    learner = build(name, learning_rate=3e-3)
    data = batch(256)
    data = batch(256, reward=data.action[:, 0] * 2, bootstrap=torch.zeros(256))
    for _ in range(800):
        ALGORITHMS[name].update(learner, data)
    error = (first_q(name, learner, data) - data.reward).square().mean()
    assert float(error) < 0.05


@pytest.mark.parametrize("name", PRESETS)
def test_exploration_stays_in_bounds_and_follows_its_noise(name: str) -> None:
    learner = build(name)
    act: Callable[..., torch.Tensor] = ALGORITHMS[name].act
    obs = torch.randn(500, 3, generator=generator(4)) * 10
    noise = torch.randn(500, 2, generator=generator(5)) * 4
    with torch.no_grad():
        action = act(learner.settings, learner.actor, obs, noise)
        assert action.abs().max() <= 1
        assert not torch.equal(action, act(learner.settings, learner.actor, obs, -noise))


@pytest.mark.parametrize("name", PRESETS)
def test_state_names_every_tensor_that_an_update_changes(name: str) -> None:
    one, other = build(name), build(name)
    module = ALGORITHMS[name]
    for n in range(4):
        module.update(one, batch(seed=n))
    with torch.no_grad():
        for key, tensor in module.state(other).items():
            tensor.copy_(module.state(one)[key])
    other.generator.set_state(one.generator.get_state())
    other.updates = one.updates
    for n in range(4, 9):
        module.update(one, batch(seed=n))
        module.update(other, batch(seed=n))
    for key, tensor in module.state(one).items():
        assert torch.equal(tensor, module.state(other)[key]), key


@pytest.mark.parametrize("name", PRESETS)
def test_targets_start_as_copies_and_move_by_tau_and_only_when_they_should(name: str) -> None:
    learner = build(name, policy_delay=2, tau=0.3)
    pairs = {"critic": (learner.target_critic, learner.critic)}
    if hasattr(learner, "target_actor"):
        pairs["actor"] = (learner.target_actor, learner.actor)
    for target, online in pairs.values():
        for key, tensor in target.items():
            assert torch.equal(tensor, online[key])
            assert tensor.data_ptr() != online[key].data_ptr()
    for n in range(1, 5):
        before = {part: copies(target) for part, (target, _) in pairs.items()}
        ALGORITHMS[name].update(learner, batch(seed=n))
        still = name == "td3" and n % 2 == 1  # TD3's targets wait for the actor, all others move at every update
        for part, (target, online) in pairs.items():
            for key, tensor in target.items():
                moved = before[part][key] + (0 if still else 0.3) * (online[key] - before[part][key])
                torch.testing.assert_close(tensor, moved.detach(), rtol=1e-6, atol=1e-7)


def actions_of(name: str, learner: Any, data: Batch, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the actor's actions and their log densities as the paper has them; the latter are 0 for TD3."""
    if name in ("td3", "fast_td3"):
        return torch.tanh(mlp(learner.actor, data.obs)), torch.zeros(len(data.obs))
    if name == "flash_sac":  # batch norm sees both halves
        both = torch.cat((data.obs, data.next_obs))
        mean, x = (part[: len(data.obs)] for part in unit_net(learner.actor, both, ("mean", "std"), training=True))
        return squashed_sample(mean, -10 + 6 * (1 + torch.tanh(x)), noise[: len(data.obs)])
    activation = torch.nn.functional.silu if name == "fast_sac" else torch.relu
    mean, x = mlp(learner.actor, data.obs, activation=activation).chunk(2, -1)
    return squashed_sample(mean, -5 + (2.5 if name == "fast_sac" else 3.5) * (1 + torch.tanh(x)), noise)


def both_q(name: str, learner: Any, data: Batch, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both critics' values of other actions."""
    if name in ("sac", "td3"):
        return twin_q(learner.critic, data.critic_obs, action)
    if name == "flash_sac":
        x = torch.cat((data.critic_obs, action), -1)
        logits = [unit_net(learner.critic, x, ("q",), f"q{i}.", training=False)[0] for i in (1, 2)]
    else:
        activation = torch.nn.functional.silu if name == "fast_sac" else torch.relu
        logits = list(twin(learner.critic, data.critic_obs, action, activation=activation))
    q1, q2 = (logit.softmax(-1) @ learner.atoms for logit in logits)
    return q1, q2


@pytest.mark.parametrize("name", PRESETS)
def test_the_actor_climbs_what_its_paper_says(name: str) -> None:
    changes = {"final_learning_rate": 0.0} if name == "flash_sac" else {}
    alpha = 0.0 if "td3" in name else 0.4
    changes |= {"initial_alpha": alpha} if alpha else {}
    learner = build(name, learning_rate=0.0, policy_delay=1, **changes)
    data, draws = batch(obs=20 * torch.randn(64, 3, generator=generator(7))), generator(2)
    if name != "flash_sac":  # whose actor comes first
        torch.randn(64, 2, generator=draws)  # the critics' noise
    noise = torch.randn(128 if name == "flash_sac" else 64, 2, generator=draws)
    with torch.no_grad():
        action, log_prob = actions_of(name, learner, data, noise)
        q1, q2 = both_q(name, learner, data, action)
    assert 0 < int((q1 < q2).sum()) < 64
    q = {"td3": q1, "fast_sac": (q1 + q2) / 2}.get(name, torch.minimum(q1, q2))
    found = ALGORITHMS[name].update(learner, data)["actor_loss"]
    torch.testing.assert_close(found, (alpha * log_prob - q).mean())


def test_target_entropies_are_the_papers() -> None:
    assert build("sac").target_entropy == -2
    assert build("fast_sac").target_entropy == 0
    assert build("flash_sac").target_entropy == pytest.approx(2 * math.log(0.15 * math.sqrt(2 * math.pi * math.e)))
    assert build("sac", target_entropy=0.5).target_entropy == 0.5


def test_gradients_are_those_of_finite_differences_in_float64() -> None:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64).requires_grad_()

    draws = generator(3)
    assert torch.autograd.gradcheck(squashed_sample, (drawn(2, 3, 2), drawn(2, 3, 2), drawn(2, 3, 2)))
    assert torch.autograd.gradcheck(gaussian_head, (drawn(4, 6),))
    masses = drawn(3, 7).detach().softmax(-1)
    assert torch.autograd.gradcheck(lambda logits: cross_entropy(masses, logits), (drawn(3, 7),))
    for layer_norm in (False, True):
        sizes = init_mlp((3, 5, 2), layer_norm=layer_norm, generator=draws)
        params = {name: tensor.double().requires_grad_() for name, tensor in sizes.items()}
        assert torch.autograd.gradcheck(
            lambda x, *tensors, names=tuple(params): mlp(dict(zip(names, tensors, strict=True)), x),
            (drawn(4, 3), *params.values()),
        )


def test_initial_weights_are_uniform_in_the_fan_in_bound() -> None:
    weight = init_mlp((400, 300), generator=generator())["0.weight"]
    bound = 1 / math.sqrt(400)
    assert weight.abs().max() <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_fast_td3_takes_the_whole_distribution_of_the_lower_valued_head() -> None:
    learner = build("fast_td3", learning_rate=0.0, target_noise=0.0)
    data = batch(next_obs=20 * torch.randn(64, 3, generator=generator(3)))
    with torch.no_grad():
        next_action = torch.tanh(mlp(learner.target_actor, data.next_obs))
        p1, p2 = (q.softmax(-1) for q in twin(learner.target_critic, data.next_critic_obs, next_action))
        lower = (p1 @ learner.atoms < p2 @ learner.atoms)[:, None]
        z = data.reward[:, None] + 0.97 * data.bootstrap[:, None] * learner.atoms
        m = project_categorical(z, torch.where(lower, p1, p2), learner.atoms)
        q1, q2 = (q.log_softmax(-1) for q in twin(learner.critic, data.critic_obs, data.action))
        expected = -(m * q1).sum(-1).mean() - (m * q2).sum(-1).mean()
    assert 0 < int(lower.sum()) < 64
    torch.testing.assert_close(ALGORITHMS["fast_td3"].update(learner, data)["critic_loss"], expected)


def test_fast_sac_projects_each_critic_with_its_own_target_and_the_entropy_inside_the_reward() -> None:
    learner = build("fast_sac", learning_rate=0.0, initial_alpha=0.5, policy_delay=2)
    data = batch()
    silu = torch.nn.functional.silu
    noise = torch.randn(64, 2, generator=generator(2))
    with torch.no_grad():
        output = mlp(learner.actor, data.next_obs, activation=silu)
        next_action, log_prob = squashed_sample(*gaussian_head(output, -5.0, 0.0), noise)
        reward = data.reward - 0.97 * data.bootstrap * 0.5 * log_prob
        z = reward[:, None] + 0.97 * data.bootstrap[:, None] * learner.atoms
        targets = twin(learner.target_critic, data.next_critic_obs, next_action, activation=silu)
        m1, m2 = (project_categorical(z, q.softmax(-1), learner.atoms) for q in targets)
        q1, q2 = (q.log_softmax(-1) for q in twin(learner.critic, data.critic_obs, data.action, activation=silu))
        expected = -(m1 * q1).sum(-1).mean() - (m2 * q2).sum(-1).mean()
    torch.testing.assert_close(ALGORITHMS["fast_sac"].update(learner, data)["critic_loss"], expected)


def test_flash_sac_shares_batch_statistics_between_both_halves_in_online_and_target_critics() -> None:
    learner = build("flash_sac", learning_rate=0.0, final_learning_rate=0.0, policy_delay=2, initial_alpha=0.5)
    data = batch()
    noise = torch.randn(64, 2, generator=generator(2))
    with torch.no_grad():
        output = torch.cat(unit_net(learner.actor, data.next_obs, ("mean", "std"), training=False), -1)
        next_action, log_prob = squashed_sample(*gaussian_head(output, -10.0, 2.0), noise)
        x = torch.cat((torch.cat((data.obs, data.action), -1), torch.cat((data.next_obs, next_action), -1)))
        p1, p2 = (
            unit_net(learner.target_critic, x, ("q",), f"q{i}.", training=True)[0][64:].softmax(-1) for i in (1, 2)
        )
        p = torch.where((p1 @ learner.atoms < p2 @ learner.atoms)[:, None], p1, p2)
        z = data.reward[:, None] + 0.99 * data.bootstrap[:, None] * (learner.atoms - 0.5 * log_prob[:, None])
        m = project_categorical(z, p, learner.atoms)
        online = [unit_net(trainable(learner.critic), x, ("q",), f"q{i}.", training=True)[0][:64] for i in (1, 2)]
        expected = sum(-(m * q.log_softmax(-1)).sum(-1).mean() for q in online) / 2
    torch.testing.assert_close(ALGORITHMS["flash_sac"].update(learner, data)["critic_loss"], expected)


def test_flash_sac_averages_parameters_only_and_its_learning_rate_reaches_the_end() -> None:
    learner = build("flash_sac", learning_rate=3e-4, final_learning_rate=1.5e-4)
    assert not [name for name in learner.target_critic if name.endswith((".mean", ".var"))]
    for n in range(1000):
        if n in (0, 999):
            ALGORITHMS["flash_sac"].update(learner, batch(seed=n))
        learner.updates = n + 1
        if n == 0:
            assert learner.critic_optimizer.learning_rate == pytest.approx(3e-4)
    assert learner.critic_optimizer.learning_rate == pytest.approx(1.5e-4, rel=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_the_actor_step_leaves_the_critics_alone(name: str) -> None:
    learner = build(name, policy_delay=1)
    module = ALGORITHMS[name]
    actor_step = getattr(module, "_update_actor_and_alpha", None) or module._update_actor
    before, actor_before = copies(learner.critic), copies(learner.actor)
    alpha = (torch.tensor(0.1),) if name in ("sac", "fast_sac") else ()
    actor_step(learner, batch(), *alpha)
    assert all(torch.equal(before[k], learner.critic[k]) for k in before)
    assert any(not torch.equal(actor_before[k], learner.actor[k]) for k in actor_before)


@pytest.mark.parametrize("name", PRESETS)
def test_no_tensor_of_the_state_drags_a_graph_along(name: str) -> None:
    learner = build(name)
    for n in range(3):
        info = ALGORITHMS[name].update(learner, batch(seed=n))
        assert not [key for key, value in info.items() if value.requires_grad]
    assert not [key for key, tensor in ALGORITHMS[name].state(learner).items() if tensor.grad_fn is not None]
