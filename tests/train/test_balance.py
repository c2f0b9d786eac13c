"""Balancing by quantile: however the router leans, the experts' loads come together within a few updates."""

import torch

from longstep.model.config import preset
from longstep.model.network import Model
from longstep.ops import moe
from longstep.train.balance import moe_layers, rebalance


def test_skewed_routers_are_balanced():
    torch.manual_seed(0)
    model = Model(preset("nano").as_mla()).train()
    with torch.no_grad():
        for i, layer in enumerate(moe_layers(model)):
            layer.router += (0.03 + 0.02 * i) * torch.randn(layer.router.shape[0], 1)  # some experts lean to everything
            layer.router *= 5
    tokens = torch.randint(0, 8192, (1, 1024))
    ratios = []
    for _ in range(6):
        with torch.no_grad():
            model(tokens)
        ratios.append(float(rebalance(model).max()))
    assert ratios[0] > 1.8, f"the start must be skewed, else this proves nothing: {ratios[0]:.2f}"
    assert max(ratios[3:]) <= 1.5, f"loads over mean by update: {ratios}"
    for layer in moe_layers(model):
        assert abs(float(layer.balance_bias_E.mean())) < 1e-6
        assert layer.score_NE is None, "a batch's scores are not kept"


def test_a_strided_sample_is_enough(monkeypatch):
    """Loads over all tokens, from a bias that was set on an eighth of them."""
    torch.manual_seed(0)
    score = (torch.randn(16384, 16) + torch.randn(16)).sigmoid()
    bias = torch.zeros(16)
    for _ in range(8):
        bias = moe.quantile_bias(score[::8], bias, 4)
    idx = (score + bias).topk(4, dim=-1).indices
    load = idx.flatten().bincount(minlength=16).float()
    assert float(load.max() / load.mean()) < 1.15


def test_a_model_without_experts_has_nothing_to_balance():
    from dataclasses import replace

    cfg = preset("nano").as_mla()
    model = Model(replace(cfg, num_dense_layers=cfg.num_layers)).train()
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert rebalance(model).tolist() == [1.0]
