"""The network is the published maths: held to an independent transcription, and seven known mistakes are seen by it."""

import network_oracle
import numpy as np
import pytest
import torch
from small_network import CONFIG, DENSE, build, rel, tokens
from torch.nn import functional

from longstep.model.config import ModelConfig, preset
from longstep.model.layers import Indexer, LatentMoE
from longstep.model.network import Model
from longstep.ops import kda, mla, moe, sparse

NUM_TOKENS = 40  # well past top_k, so that the index matters


def arrays(model: Model) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in model.state_dict().items()}


def difference(cfg: ModelConfig) -> float:
    model, ids = build(cfg), tokens(NUM_TOKENS)
    want = torch.from_numpy(network_oracle.logits(cfg, arrays(model), ids[0].tolist()))
    return rel(model.logits(model(ids))[0], want)


@pytest.mark.parametrize("cfg", [CONFIG, DENSE], ids=["dsa", "mla"])
def test_network_is_the_published_maths(cfg):
    assert (error := difference(cfg)) < 1e-10, f"{error:.1e}"


def a_log_per_channel(monkeypatch):
    def wrong(z, a_log_H, dt_bias_HK, lower_bound):
        per_channel = functional.pad(a_log_H, (0, z.shape[-1] - len(a_log_H)))  # padded on disk to the head dim
        return lower_bound * torch.sigmoid(per_channel.exp() * (z + dt_bias_HK))

    monkeypatch.setattr(kda.reference, "log_decay", wrong)


def softplus_gate(monkeypatch):
    def wrong(z, a_log_H, dt_bias_HK, lower_bound):
        return (-a_log_H.exp()[:, None] * functional.softplus(z + dt_bias_HK)).clamp(min=lower_bound)

    monkeypatch.setattr(kda.reference, "log_decay", wrong)


def rope_applied(monkeypatch):
    def rotate(x, first):  # adjacent pairs, base 10000, along dim 1
        n = x.shape[-1] // 2
        angle = torch.outer(
            torch.arange(first, first + x.shape[1]).double(), 10000.0 ** (-torch.arange(n).double() / n)
        ).view(1, x.shape[1], *[1] * (x.ndim - 3), n)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        ).flatten(-2)

    def rotated(q, kv, w_kvb):
        L = w_kvb.shape[2]
        R = kv.shape[-1] - L
        q = torch.cat((q[..., :-R], rotate(q[..., -R:], kv.shape[1] - q.shape[1])), dim=-1)
        return q, torch.cat((kv[..., :L], rotate(kv[..., L:], 0)), dim=-1), w_kvb

    dense, chosen = mla.attend.reference, sparse.attend.reference
    monkeypatch.setattr(mla.attend, "reference", lambda q, kv, w, **kw: dense(*rotated(q, kv, w), **kw))
    monkeypatch.setattr(sparse.attend, "reference", lambda q, kv, w, s: chosen(*rotated(q, kv, w), s))


def norm_before_the_experts(monkeypatch):
    def wrong(self, x_BTD):
        x = x_BTD.flatten(0, 1)
        idx, w, _ = moe.route(x, self.router, self.balance_bias_E, self.top_k)
        z = self.latent_norm(self.latent_down_proj(x))
        u = moe.experts(z, idx, w, self.w13_EFL, self.w2_ELF, self.beta, self.linear_beta)
        return (self.latent_up_proj(u) + self.shared_experts(x)).view_as(x_BTD)

    monkeypatch.setattr(LatentMoE, "forward", wrong)


def router_bias_in_the_weights(monkeypatch):
    def wrong(x, w_ED, bias_E, top_k):
        score = functional.linear(x, w_ED).sigmoid()
        w, idx = (score + bias_E).topk(top_k, dim=-1)
        return idx, w / w.sum(-1, keepdim=True), score

    monkeypatch.setattr(moe.route, "reference", wrong)


def rms_norm_on_index_keys(monkeypatch):
    def wrong(self, x):
        k = self.wk(x)
        return k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + 1e-5) * self.k_norm.weight + self.k_norm.bias

    monkeypatch.setattr(Indexer, "keys", wrong)


def bias_dropped_from_index_keys(monkeypatch):
    def wrong(self, x):
        return functional.layer_norm(self.wk(x), self.k_norm.normalized_shape, self.k_norm.weight, None, 1e-5)

    monkeypatch.setattr(Indexer, "keys", wrong)


@pytest.mark.parametrize(
    "mistake",
    [
        a_log_per_channel,
        softplus_gate,
        rope_applied,
        norm_before_the_experts,
        router_bias_in_the_weights,
        rms_norm_on_index_keys,
        bias_dropped_from_index_keys,
    ],
    ids=lambda f: f.__name__,
)
def test_a_mistake_shows(mistake, monkeypatch):
    """Each of these passes every shape check; the transcription tells it from the truth by far more than rounding."""
    mistake(monkeypatch)
    assert (error := difference(CONFIG)) > 1e-4, f"{error:.1e}"


def layer_kinds(cfg: ModelConfig) -> list[int]:
    with torch.device("meta"):
        return [n for n, layer in enumerate(Model(cfg).layers) if hasattr(layer.attn, "kv_b_proj")]


K3_ATTENTION = [*range(3, 92, 4), 92]  # 0-based


@pytest.mark.parametrize("name", ["k3", "k3.1-pro"])
def test_attention_stands_where_the_released_list_says(name):
    assert layer_kinds(preset(name)) == K3_ATTENTION
    assert len(K3_ATTENTION) == 24


def test_a_layer_list_read_from_zero_shows(monkeypatch):
    monkeypatch.setattr(ModelConfig, "is_attention", lambda self, layer: layer in self.attention_layers)
    assert layer_kinds(preset("k3")) != K3_ATTENTION
