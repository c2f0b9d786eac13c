"""The parts of a layer: KDA, Gated MLA (with an indexer: Gated DSA), the MLPs, and the mix between layers.

B sequences, T tokens, D model, H heads, P = H x K channels, N tokens of all sequences together. Each module says what
it computes in the order in which it computes it; the numerics live in `longstep.ops`. Every linear map casts its weight
to its input's dtype, so that fp32 weights train a bf16 network without hidden state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from longstep.model.cache import Cache
from longstep.model.config import DSAConfig, MLAConfig, ModelConfig
from longstep.ops import attn_res, index, kda, mla, moe, sparse
from longstep.ops.numerics import wide
from longstep.ops.rms_norm import gated_rms_norm, rms_norm
from longstep.ops.situ import situ


@dataclass(frozen=True, slots=True)
class Span:
    """Which tokens a forward pass is about: packed documents, or the next T tokens of cached sequences."""

    cu_seqlens: Tensor | None = None
    cache: Cache | None = None
    slots: Sequence[int] = ()
    first: Sequence[int] = ()  # positions that each slot held before


class Linear(nn.Linear):
    """y = W x, in x's dtype."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, d: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Mix(nn.Module):
    """Attention over depth: the finished blocks and the open one, weighted by a learned query."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(cfg.d_model))
        self.query = nn.Parameter(torch.zeros(cfg.d_model))  # zero: the plain mean, until training says otherwise
        self.eps = cfg.norm_eps

    def forward(self, blocks_BTD: Sequence[Tensor], open_BTD: Tensor) -> Tensor:
        return attn_res.mix((*blocks_BTD, open_BTD), self.norm, self.query, self.eps)


class KDA(nn.Module):
    """Kimi Delta Attention with a full-rank output gate. `cache_layer` counts KDA layers only."""

    def __init__(self, cfg: ModelConfig, cache_layer: int):
        super().__init__()
        c, D, P = cfg.kda, cfg.d_model, cfg.kda.width
        self.cfg, self.eps, self.cache_layer = c, cfg.norm_eps, cache_layer
        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (Linear(D, P) for _ in range(4))
        self.f_a_proj, self.f_b_proj = Linear(D, c.gate_rank), Linear(c.gate_rank, P)
        self.b_proj = Linear(D, c.num_heads)
        self.o_proj = Linear(P, D)
        self.q_conv, self.k_conv, self.v_conv = (nn.Parameter(torch.empty(P, c.conv_width)) for _ in range(3))
        self.a_log = nn.Parameter(torch.zeros(c.num_heads))  # one number per head; padded on disk
        self.dt_bias = nn.Parameter(torch.empty(P))
        self.o_norm = nn.Parameter(torch.ones(c.head_dim))

    def forward(self, x_BTD: Tensor, span: Span) -> Tensor:
        heads = (*x_BTD.shape[:2], self.cfg.num_heads, self.cfg.head_dim)
        state = tail = None
        if span.cache is not None:
            slots = torch.tensor(span.slots, device=x_BTD.device)
            state, tail = span.cache.states[self.cache_layer, slots], span.cache.tails[self.cache_layer, slots]

        qkv = torch.cat((self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)), dim=-1)
        w_conv = torch.cat((self.q_conv, self.k_conv, self.v_conv))
        qkv, tail = kda.short_conv(qkv, w_conv, tail, span.cu_seqlens)
        q, k, v = (u.view(heads) for u in qkv.chunk(3, dim=-1))
        z = self.f_b_proj(self.f_a_proj(x_BTD)).view(heads)
        o_BTHV, state = kda.attend(
            q,
            k,
            v,
            z,
            self.b_proj(x_BTD),
            self.a_log,
            self.dt_bias.view(heads[2:]),
            lower_bound=self.cfg.gate_lower_bound,
            state_BHKV=state,
            cu_seqlens=span.cu_seqlens,
        )
        if span.cache is not None:
            span.cache.states[self.cache_layer, slots] = state
            span.cache.tails[self.cache_layer, slots] = tail.to(span.cache.tails.dtype)
        gate = self.g_proj(x_BTD).view(heads)
        y_BTD: Tensor = self.o_proj(gated_rms_norm(o_BTHV, gate, self.o_norm, self.eps).flatten(-2))
        return y_BTD


class Indexer(nn.Module):
    """DSA's choice of positions. Its inputs are detached: it learns from its own loss, never from the model's."""

    def __init__(self, cfg: DSAConfig, d_model: int, q_lora: int):
        super().__init__()
        self.cfg = cfg
        self.wq_b = Linear(q_lora, cfg.num_heads * cfg.head_dim)
        self.wk = Linear(d_model, cfg.head_dim)
        self.weights_proj = Linear(d_model, cfg.num_heads)
        self.k_norm = nn.LayerNorm(cfg.head_dim, eps=cfg.key_norm_eps)  # with bias and mean, unlike the others

    def keys(self, x_BTD: Tensor) -> Tensor:
        n = self.k_norm
        k_ = functional.layer_norm(wide(self.wk(x_BTD)), n.normalized_shape, wide(n.weight), wide(n.bias), n.eps)
        return k_.to(x_BTD.dtype)

    def queries(self, x_BTD: Tensor, c_q: Tensor) -> tuple[Tensor, Tensor]:
        """Query heads [B, T, H, I] and their weights [B, T, H]."""
        q_BTHI = self.wq_b(c_q).view(*x_BTD.shape[:2], self.cfg.num_heads, self.cfg.head_dim)
        return q_BTHI, self.weights_proj(x_BTD)


class MLA(nn.Module):
    """Gated MLA; with an indexer, Gated DSA. No positional code. `cache_layer` counts attention layers only."""

    def __init__(self, cfg: ModelConfig, cache_layer: int):
        super().__init__()
        c, D = cfg.mla, cfg.d_model
        self.cfg: MLAConfig = c
        self.cache_layer = cache_layer
        self.q_a_proj, self.q_a_norm = Linear(D, c.q_lora), RMSNorm(c.q_lora, c.latent_norm_eps)
        self.q_b_proj = Linear(c.q_lora, c.num_heads * c.d_qk)
        self.kv_a_proj, self.kv_a_norm = Linear(D, c.d_cache), RMSNorm(c.kv_lora, c.latent_norm_eps)
        self.kv_b_proj = Linear(c.kv_lora, c.num_heads * (c.d_nope + c.d_v))
        self.g_proj = Linear(D, c.num_heads * c.d_v)
        self.o_proj = Linear(c.num_heads * c.d_v, D)
        self.indexer = Indexer(cfg.dsa, D, c.q_lora) if cfg.dsa else None

    def forward(self, x_BTD: Tensor, span: Span) -> Tensor:
        c_q = self.q_a_norm(self.q_a_proj(x_BTD))
        q_BTHQ = self.q_b_proj(c_q).view(*x_BTD.shape[:2], self.cfg.num_heads, self.cfg.d_qk)
        c_kv, r = torch.split(self.kv_a_proj(x_BTD), [self.cfg.kv_lora, self.cfg.d_shared], dim=-1)
        kv_BTC = torch.cat((self.kv_a_norm(c_kv), r), dim=-1)  # r is neither normalised nor rotated

        k_index = q_index = w_index = None
        if self.indexer is not None:
            x_, c_q_ = x_BTD.detach(), c_q.detach()
            k_index = self.indexer.keys(x_)
            q_index, w_index = self.indexer.queries(x_, c_q_)

        if span.cache is None:
            o_BTHV = self._attend(q_BTHQ, kv_BTC, q_index, k_index, w_index, 0, span.cu_seqlens)
        else:  # each sequence has its own length: one at a time, each over its own pages
            rows = []
            for b, (slot, first) in enumerate(zip(span.slots, span.first, strict=True)):
                kv = span.cache.append(span.cache.kv, self.cache_layer, slot, first, kv_BTC[b])[None]
                k = None
                if k_index is not None:
                    k = span.cache.append(span.cache.index_keys, self.cache_layer, slot, first, k_index[b])[None]
                one = [None if x is None else x[b : b + 1] for x in (q_index, w_index)]
                rows.append(self._attend(q_BTHQ[b : b + 1], kv, one[0], k, one[1], first, None))
            o_BTHV = torch.cat(rows)
        gate = torch.sigmoid(wide(self.g_proj(x_BTD)))
        y_BTD: Tensor = self.o_proj((wide(o_BTHV).flatten(-2) * gate).to(x_BTD.dtype))
        return y_BTD

    def _attend(
        self,
        q_BTHQ: Tensor,
        kv_BSC: Tensor,
        q_index: Tensor | None,
        k_index: Tensor | None,
        w_index: Tensor | None,
        first: int,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        w_kvb_HML = self.kv_b_proj.weight.view(self.cfg.num_heads, -1, self.cfg.kv_lora)
        kv_BSC = kv_BSC.to(q_BTHQ.dtype)
        if self.indexer is None or kv_BSC.shape[1] <= self.indexer.cfg.top_k:  # everything would be selected
            return mla.attend(q_BTHQ, kv_BSC, w_kvb_HML, first=first, cu_seqlens=cu_seqlens)
        assert q_index is not None
        assert k_index is not None
        assert w_index is not None
        with torch.no_grad():
            scores = index.scores(q_index, k_index, w_index, first=first, cu_seqlens=cu_seqlens)
            selected = index.select(scores, self.indexer.cfg.top_k)
        return sparse.attend(q_BTHQ, kv_BSC, w_kvb_HML, selected)


class MLP(nn.Module):
    """SiTU MLP: the dense layers, and the shared experts of LatentMoE."""

    def __init__(self, cfg: ModelConfig, width: int):
        super().__init__()
        self.gate_up_proj = Linear(cfg.d_model, 2 * width)  # gate half first
        self.down_proj = Linear(width, cfg.d_model)
        self.beta, self.linear_beta = cfg.situ_beta, cfg.situ_linear_beta

    def forward(self, x: Tensor) -> Tensor:
        g, u = self.gate_up_proj(x).chunk(2, dim=-1)
        y: Tensor = self.down_proj(situ(g, u, self.beta, self.linear_beta))
        return y


class LatentMoE(nn.Module):
    """Route on the full hidden state; compute the experts in a smaller latent space; shared experts beside them.

    In training the last pass's `load_E` (tokens per expert) and `score_NE` stay here, for balancing by quantile.
    """

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        c, D = cfg.moe, cfg.d_model
        self.top_k = c.top_k
        self.beta, self.linear_beta = cfg.situ_beta, cfg.situ_linear_beta
        self.router = nn.Parameter(torch.empty(c.num_experts, D))  # applied in fp32
        self.register_buffer("balance_bias_E", torch.zeros(c.num_experts))
        self.latent_down_proj = Linear(D, c.d_latent)
        self.w13_EFL = nn.Parameter(torch.empty(c.num_experts, 2 * c.d_expert, c.d_latent))  # gate half first
        self.w2_ELF = nn.Parameter(torch.empty(c.num_experts, c.d_latent, c.d_expert))
        self.latent_norm = RMSNorm(c.d_latent, cfg.norm_eps)
        self.latent_up_proj = Linear(c.d_latent, D)
        self.shared_experts = MLP(cfg, c.d_shared)
        self.balance_bias_E: Tensor
        self.load_E: Tensor | None = None
        self.score_NE: Tensor | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        idx_NK, w_NK, score_NE = moe.route(x_ND, self.router, self.balance_bias_E, self.top_k)
        if self.training:
            self.score_NE = score_NE.detach()
            expert_E = torch.arange(len(self.router), device=idx_NK.device)
            self.load_E = (idx_NK[..., None] == expert_E).sum((0, 1))  # bincount would wait for the device
        z_NL = self.latent_down_proj(x_ND)
        u_NL = moe.experts(z_NL, idx_NK, w_NK, self.w13_EFL, self.w2_ELF, self.beta, self.linear_beta)
        y_ND: Tensor = self.latent_up_proj(self.latent_norm(u_NL))  # norm comes after the sum over experts
        y_ND = y_ND + self.shared_experts(x_ND)
        return y_ND.view_as(x_BTD)


class Layer(nn.Module):
    """One layer: attention of its kind, then an MLP of its kind, each reading a mix and adding to the open block."""

    def __init__(self, cfg: ModelConfig, layer: int):
        super().__init__()
        kinds = [cfg.is_attention(n) for n in range(layer)]
        self.opens_block = layer % cfg.attn_res_block == 0
        self.attn_mix, self.ffn_mix = Mix(cfg), Mix(cfg)  # layer 0 owns attn_mix as released, and never uses it
        self.attn_norm, self.ffn_norm = (RMSNorm(cfg.d_model, cfg.norm_eps) for _ in range(2))
        self.attn: KDA | MLA
        self.attn = MLA(cfg, sum(kinds)) if cfg.is_attention(layer) else KDA(cfg, layer - sum(kinds))
        self.ffn = MLP(cfg, cfg.d_dense) if cfg.is_dense(layer) else LatentMoE(cfg)

    def forward(self, blocks: tuple[Tensor, ...], p_BTD: Tensor, span: Span) -> tuple[tuple[Tensor, ...], Tensor]:
        """(finished blocks, sum of the open block) before the layer -> the same after it."""
        h = self.attn_mix(blocks, p_BTD) if blocks else p_BTD
        a = self.attn(self.attn_norm(h), span)
        if self.opens_block:  # the mix above still saw the block that closes here as the open one
            blocks, p_BTD = (*blocks, p_BTD), a
        else:
            p_BTD = p_BTD + a
        return blocks, p_BTD + self.ffn(self.ffn_norm(self.ffn_mix(blocks, p_BTD)))
