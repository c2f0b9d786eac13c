"""The network arranged for decoding on a CPU: one token of each of a few cached sequences per step.

`prepare(model)` moves the weights into one block of memory, those that read the same input side by side, and gives the
model a `Decoder`, which `Model.forward` uses for single tokens of cached sequences. The model's own parameters become
views of that block: their values, and all its other forms, stay as they are. It computes what layers.py computes, with
fewer and larger products and nothing copied, in the weights' dtype (fp32; float64 to set the two beside each other in a
test). Prepare again after a change of weights.

B sequences, D model, J sources of a mix, E experts, L expert latent, other letters as in layers.py.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from longstep.model.cache import Cache
from longstep.model.layers import KDA, MLA, MLP, LatentMoE, Layer, Mix
from longstep.model.network import Model
from longstep.ops import index

HUGE_PAGE = 2**21  # bytes


def prepare(model: Model) -> None:
    """Give `model` its decoder. It must be on the CPU, all of it in fp32 (or float64)."""
    dtype = model.embed.weight.dtype
    for name, p in model.named_parameters():
        assert p.device.type == "cpu", f"{name} is on {p.device}; the decoder runs on the CPU"
        assert p.dtype == dtype in (torch.float32, torch.float64), f"{name} is {p.dtype}; the decoder takes fp32"
    parameters = list(model.parameters())
    model.decoder = Decoder(model, _Arena(sum(p.numel() for p in parameters) + 16 * len(parameters), dtype))


class _Arena:
    """One block of memory, in huge pages where the system grants them, handed out piece by piece."""

    def __init__(self, num_values: int, dtype: torch.dtype):
        self.dtype = dtype
        if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux: worth 5 to 10% of a product's time
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, gets none
            memory = mmap.mmap(-1, dtype.itemsize * num_values + HUGE_PAGE, flags=flags)
            memory.madvise(mmap.MADV_HUGEPAGE)
            values = torch.frombuffer(memory, dtype=dtype)
            self._values = values[-values.data_ptr() % HUGE_PAGE // dtype.itemsize :]
        else:
            self._values = torch.empty(num_values, dtype=dtype)
        self._used = 0

    def place(self, *weights: Tensor) -> Tensor:
        """Matrices [out, in] of one input, side by side as [in, sum of outs]; parameters become views of it."""
        joined = torch.cat([w.data for w in weights]).T
        block = self._take(joined.numel()).view(joined.shape).copy_(joined)
        for w, part in zip(weights, torch.split(block, [len(w) for w in weights], dim=1), strict=True):
            w.data = part.T
        return block

    def place_rows(self, *weights: Tensor) -> Tensor:
        """Matrices [out, in] of one output, one below the other as [sum of ins, out]; parameters become views of it."""
        joined = torch.cat([w.data.T for w in weights])
        block = self._take(joined.numel()).view(joined.shape).copy_(joined)
        for w, part in zip(weights, torch.split(block, [w.shape[1] for w in weights]), strict=True):
            w.data = part.T
        return block

    def place_each(self, weights: Tensor) -> list[Tensor]:
        """A stack of matrices [E, out, in], each as [in, out]; the parameter becomes a view of all."""
        block = self._take(weights.numel()).view(weights.shape[0], weights.shape[2], weights.shape[1])
        block.copy_(weights.data.transpose(1, 2))
        weights.data = block.transpose(1, 2)
        return list(block.unbind())

    def _take(self, num_values: int) -> Tensor:
        start = self._used
        self._used += -(-num_values // 16) * 16  # 64 bytes
        return self._values[start : start + num_values]


class Decoder:
    """Runs one step of the whole network. Keeps nothing between steps but scratch: one thread at a time."""

    def __init__(self, model: Model, arena: _Arena):
        self.embed = model.embed.weight.data
        self.layers = [_Layer(layer, arena, model.cfg.norm_eps) for layer in model.layers]  # type: ignore[arg-type]
        self.num_sources = 2 + (model.cfg.num_layers - 1) // model.cfg.attn_res_block
        self.output_mix = _Mix(model.output_mix, model.norm.weight.data, model.cfg.norm_eps)
        self.head = arena.place(model.head.weight)

    @torch.no_grad()
    def step(self, tokens_B1: Tensor, cache: Cache, slots: Sequence[int], first: Sequence[int]) -> Tensor:
        """Hidden states [B, 1, D] of one token more of each slot; `first` are the positions of these tokens."""
        batch = _Batch(cache, slots, first)
        assert cache.kv.dtype == self.embed.dtype, (
            f"weights are {self.embed.dtype}, the cache {cache.kv.dtype}: use one"
        )
        x_BD = self.embed[tokens_B1[:, 0]]
        v_JBD = x_BD.new_empty(self.num_sources, *x_BD.shape)  # the finished blocks, then the open one's sum
        v_JBD[0] = x_BD
        j = 0
        for layer in self.layers:
            j = layer.step(v_JBD, j, batch)
        return self.output_mix.step(v_JBD[: j + 1])[:, None]


class _Batch:
    """Where the sequences of a step lie in the cache."""

    def __init__(self, cache: Cache, slots: Sequence[int], first: Sequence[int]):
        self.cache, self.slots = cache, slots
        self.lengths = [n + 1 for n in first]
        self.rows_B = torch.tensor([cache.row(slot, n) for slot, n in zip(slots, first, strict=True)])
        start, stop = slots[0], slots[0] + len(slots)
        self.is_run = list(slots) == list(range(start, stop))
        self.slots_B: slice | Tensor = slice(start, stop) if self.is_run else torch.tensor(slots)


class _InverseRMS:
    """1 / sqrt(mean(x^2) + eps) over the last axis. torch's rms_norm costs three times as much at these sizes."""

    def __init__(self, num_channels: int, eps: float, dtype: torch.dtype):
        self.eps, self.per_channel = torch.tensor(eps, dtype=dtype), 1 / num_channels

    def __call__(self, x: Tensor) -> Tensor:
        n = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self.eps, n, n, value=self.per_channel).rsqrt_()


class _Mix:
    """A mix and the norm that reads it."""

    def __init__(self, mix: Mix, w_norm_D: Tensor, eps: float):
        self.query_D1 = (mix.norm.data * mix.query.data)[:, None]
        self.w_D, self.inverse_rms = w_norm_D, _InverseRMS(len(w_norm_D), eps, w_norm_D.dtype)

    def step(self, v_JBD: Tensor) -> Tensor:
        if len(v_JBD) == 1:
            h_BD = v_JBD[0]
        else:
            J, B, D = v_JBD.shape
            v_ND = v_JBD.view(-1, D)
            a_JB = torch.mm(v_ND, self.query_D1).mul_(self.inverse_rms(v_ND)).view(J, B).softmax(0)
            if B == 1:
                h_BD = torch.mm(a_JB.T, v_ND)
            else:
                h_BD = torch.bmm(a_JB.T[:, None], v_JBD.transpose(0, 1))[:, 0]
        return torch.mul(h_BD, self.w_D).mul_(self.inverse_rms(h_BD))


class _Layer:
    def __init__(self, layer: Layer, arena: _Arena, eps: float):
        self.opens_block = layer.opens_block
        self.attn_mix = _Mix(layer.attn_mix, layer.attn_norm.weight.data, eps)
        self.ffn_mix = _Mix(layer.ffn_mix, layer.ffn_norm.weight.data, eps)
        self.attn = _KDA(layer.attn, arena) if isinstance(layer.attn, KDA) else _MLA(layer.attn, arena)
        self.ffn = _MLP(layer.ffn, arena) if isinstance(layer.ffn, MLP) else _MoE(layer.ffn, arena)

    def step(self, v_JBD: Tensor, j: int, batch: _Batch) -> int:
        """Reads the sources up to the open block's sum, v[j], and adds to it; returns the new j."""
        y_BP, w_o = self.attn.step(self.attn_mix.step(v_JBD[: j + 1]), batch)
        if self.opens_block:
            j += 1
            torch.mm(y_BP, w_o, out=v_JBD[j])
        else:
            torch.addmm(v_JBD[j], y_BP, w_o, out=v_JBD[j])
        y_BP, w_o = self.ffn.step(self.ffn_mix.step(v_JBD[: j + 1]))
        torch.addmm(v_JBD[j], y_BP, w_o, out=v_JBD[j])
        return j


class _KDA:
    def __init__(self, m: KDA, arena: _Arena):
        c = m.cfg
        self.layer, self.P, self.rank, self.heads, self.K = m.cache_layer, c.width, c.gate_rank, c.num_heads, c.head_dim
        self.lower_bound, self.o_norm = c.gate_lower_bound, m.o_norm.data
        self.inverse_rms = _InverseRMS(self.K, m.eps, arena.dtype)
        self.inverse_length = _InverseRMS(1, 1e-6, arena.dtype)
        projections = (m.q_proj, m.k_proj, m.v_proj, m.g_proj, m.f_a_proj, m.b_proj)
        self.w_in = arena.place(*(p.weight for p in projections))
        self.w_out = arena.place(m.o_proj.weight)
        a_P = m.a_log.data.exp().repeat_interleave(self.K)
        self.w_decay, self.decay_bias = (m.f_b_proj.weight.data * a_P[:, None]).T.contiguous(), m.dt_bias.data * a_P
        self.w_conv_WC = torch.cat((m.q_conv.data, m.k_conv.data, m.v_conv.data)).T.contiguous()
        self.qk_scale = torch.tensor([self.K**-0.5, 1.0], dtype=arena.dtype).repeat_interleave(self.heads)[:, None]

    def step(self, x_BD: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
        B, P, H, K = len(x_BD), self.P, self.heads, self.K
        y = torch.mm(x_BD, self.w_in)
        qkv, gate, f_a, b = torch.split(y, [3 * P, P, self.rank, H], dim=1)

        tails_BWC = batch.cache.tails[self.layer, batch.slots_B]
        window_BWC = torch.cat((tails_BWC, qkv[:, None]), dim=1)
        if batch.is_run:
            tails_BWC.copy_(window_BWC[:, 1:])
        else:
            batch.cache.tails[self.layer, batch.slots_B] = window_BWC[:, 1:]
        u_BC = torch.nn.functional.silu((window_BWC * self.w_conv_WC).sum(1), inplace=True)
        qk = u_BC[:, : 2 * P].view(B, 2 * H, K)
        qk.mul_(self.inverse_length(qk).mul_(self.qk_scale))
        N = B * H
        q_N1K, k_NK1 = qk[:, :H].reshape(N, 1, K), qk[:, H:].reshape(N, K, 1)
        v_N1V = u_BC[:, 2 * P :].reshape(N, 1, K)

        decay = torch.addmm(self.decay_bias, f_a, self.w_decay).sigmoid_().mul_(self.lower_bound).exp_()
        S_all = batch.cache.states[self.layer, batch.slots_B]  # a view where the slots lie in a row, else a copy
        S_NKV = S_all.view(N, K, K)
        S_NKV.mul_(decay.view(N, K, 1))
        delta_N1V = (v_N1V - torch.bmm(k_NK1.transpose(1, 2), S_NKV)).mul_(b.sigmoid().reshape(N, 1, 1))
        S_NKV.baddbmm_(k_NK1, delta_N1V)
        o_N1V = torch.bmm(q_N1K, S_NKV)
        if not batch.is_run:
            batch.cache.states[self.layer, batch.slots_B] = S_all
        o_N1V.mul_(self.inverse_rms(o_N1V)).mul_(self.o_norm)
        return o_N1V.view(B, P).mul_(gate.sigmoid()), self.w_out


class _MLA:
    def __init__(self, m: MLA, arena: _Arena):
        c, self.layer, self.indexer = m.cfg, m.cache_layer, m.indexer
        self.cfg, self.q_norm, self.kv_norm = c, m.q_a_norm.weight.data, m.kv_a_norm.weight.data
        self.inverse_rms_q = _InverseRMS(c.q_lora, c.latent_norm_eps, arena.dtype)
        self.inverse_rms_kv = _InverseRMS(c.kv_lora, c.latent_norm_eps, arena.dtype)
        projections = [m.g_proj, m.q_a_proj, m.kv_a_proj]
        second = [m.q_b_proj]
        self.widths = [c.num_heads * c.d_v, c.q_lora, c.kv_lora, c.d_shared]
        if m.indexer is not None:
            projections += [m.indexer.wk, m.indexer.weights_proj]
            second += [m.indexer.wq_b]
            self.widths += [m.indexer.cfg.head_dim, m.indexer.cfg.num_heads]
        self.w_in = arena.place(*(p.weight for p in projections))
        self.w_q = arena.place(*(p.weight for p in second))
        self.w_out = arena.place(m.o_proj.weight)
        w_kvb_HML = m.kv_b_proj.weight.data.view(c.num_heads, -1, c.kv_lora)
        self.w_k_HNL = w_kvb_HML[:, : c.d_nope].contiguous()
        self.w_v_HLV = w_kvb_HML[:, c.d_nope :].transpose(1, 2).contiguous()
        self.scale = c.d_qk**-0.5

    def step(self, x_BD: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
        c, B = self.cfg, len(x_BD)
        H, L = c.num_heads, c.kv_lora
        gate, c_q, c_kv, r, *index_parts = torch.split(torch.mm(x_BD, self.w_in), self.widths, dim=1)
        kv_SC = batch.cache.kv[self.layer]
        c_kv.mul_(self.inverse_rms_kv(c_kv)).mul_(self.kv_norm)
        kv_SC.index_copy_(0, batch.rows_B, torch.cat((c_kv, r), dim=1))
        q_all = torch.mm(c_q.mul_(self.inverse_rms_q(c_q)).mul_(self.q_norm), self.w_q)
        q_HBQ = q_all[:, : H * c.d_qk].view(B, H, c.d_qk).transpose(0, 1).mul(self.scale)
        q_BHC = x_BD.new_empty(B, H, c.d_cache)
        q_BHC[..., :L] = torch.bmm(q_HBQ[..., : c.d_nope], self.w_k_HNL).transpose(0, 1)
        q_BHC[..., L:] = q_HBQ[..., c.d_nope :].transpose(0, 1)
        select = self._selector(q_all[:, H * c.d_qk :], index_parts, batch) if self.indexer is not None else None

        o_BHL = x_BD.new_empty(B, H, L)
        for b, (slot, length) in enumerate(zip(batch.slots, batch.lengths, strict=True)):
            seen_SC = batch.cache.read(kv_SC, slot, length)
            if select is not None and length > select.top_k:
                seen_SC = seen_SC.index_select(0, select(b))
            a_HS = torch.mm(q_BHC[b], seen_SC.T).softmax(1)
            torch.mm(a_HS, seen_SC[:, :L], out=o_BHL[b])
        o_BP = torch.bmm(o_BHL.transpose(0, 1), self.w_v_HLV).transpose(0, 1).reshape(B, H * c.d_v)
        return o_BP.mul_(gate.sigmoid()), self.w_out

    def _selector(self, q_BI: Tensor, parts: list[Tensor], batch: _Batch) -> "_Selector":
        assert self.indexer is not None
        i, n = self.indexer.cfg, self.indexer.k_norm
        k_BI, w_BH = parts
        keys_SI = batch.cache.index_keys[self.layer]
        keys_SI.index_copy_(0, batch.rows_B, torch.layer_norm(k_BI, (i.head_dim,), n.weight, n.bias, n.eps))
        return _Selector(batch, keys_SI, q_BI.view(-1, i.num_heads, i.head_dim), w_BH, i.top_k)


class _Selector:
    """The index's choice for one row of the batch."""

    def __init__(self, batch: _Batch, keys_SI: Tensor, q_BHI: Tensor, w_BH: Tensor, top_k: int):
        self.batch, self.keys_SI, self.q_BHI, self.w_BH, self.top_k = batch, keys_SI, q_BHI, w_BH, top_k

    def __call__(self, b: int) -> Tensor:
        seen_SI = self.batch.cache.read(self.keys_SI, self.batch.slots[b], self.batch.lengths[b])
        score_S = torch.mm(self.w_BH[b : b + 1], torch.mm(self.q_BHI[b], seen_SI.T).relu_())[0]
        lowest = score_S.kthvalue(len(score_S) - self.top_k + 1).values
        selected = (score_S >= lowest).nonzero()[:, 0]
        if len(selected) > self.top_k:  # several with the lowest score: the reference knows which
            return index.select(score_S[None, None], self.top_k)[0, 0]
        return selected


class _SiTU:
    """SiTU of the two halves of the last axis."""

    def __init__(self, width: int, m: MLP | LatentMoE, dtype: torch.dtype):
        self.width, self.bound = width, m.beta * m.linear_beta
        self.inverse_betas = torch.tensor([1 / m.beta, 1 / m.linear_beta], dtype=dtype).repeat_interleave(width)
        self.zero = torch.zeros((), dtype=dtype)

    def __call__(self, gu: Tensor) -> Tensor:
        tanh = (gu * self.inverse_betas).tanh_()
        bounded = torch.addcmul(self.zero, tanh[:, : self.width], tanh[:, self.width :], value=self.bound)
        return bounded.mul_(gu[:, : self.width].sigmoid())


class _MLP:
    def __init__(self, m: MLP, arena: _Arena):
        self.w_in, self.w_out = arena.place(m.gate_up_proj.weight), arena.place(m.down_proj.weight)
        self.situ = _SiTU(len(self.w_out), m, arena.dtype)

    def step(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        return self.situ(torch.mm(x_BD, self.w_in)), self.w_out


class _MoE:
    def __init__(self, m: LatentMoE, arena: _Arena):
        self.top_k = m.top_k
        shared = m.shared_experts
        self.w_in = arena.place(shared.gate_up_proj.weight, m.latent_down_proj.weight, m.router)
        E, self.L, self.F2 = len(m.router), m.latent_norm.weight.numel(), m.w13_EFL.shape[1]
        self.widths = [len(shared.gate_up_proj.weight), self.L, E]
        self.w13, self.w2 = arena.place_each(m.w13_EFL), arena.place_each(m.w2_ELF)
        self.bias_E, self.norm = m.balance_bias_E, m.latent_norm.weight.data
        self.inverse_rms = _InverseRMS(self.L, m.latent_norm.eps, arena.dtype)
        self.situ = _SiTU(self.F2 // 2, m, arena.dtype)
        self.shared_situ = _SiTU(self.widths[0] // 2, m, arena.dtype)
        self.h_KF = torch.empty(
            self.top_k, self.F2, dtype=arena.dtype
        )  # one token's experts, between their two products
        self.rows = torch.split(self.h_KF, 1)
        # [latent | shared] -> D: both end in one product
        self.w_out = arena.place_rows(m.latent_up_proj.weight, shared.down_proj.weight)

    def step(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        shared, z_BL, score = torch.split(torch.mm(x_BD, self.w_in), self.widths, dim=1)
        score = score.sigmoid()
        idx_BK = (score + self.bias_E).topk(self.top_k, dim=1).indices
        w_BK = score.gather(1, idx_BK)
        w_BK.div_(w_BK.sum(1, keepdim=True).add_(1e-20))
        if len(x_BD) == 1:
            u_BL = self._one(z_BL, idx_BK[0].tolist(), w_BK.T)
        else:
            u_BL = self._many(z_BL, idx_BK, w_BK)
        u_BL.mul_(self.inverse_rms(u_BL)).mul_(self.norm)
        return torch.cat((u_BL, self.shared_situ(shared)), dim=1), self.w_out

    def _one(self, z_1L: Tensor, chosen: list[int], w_K1: Tensor) -> Tensor:
        """One token reads its experts as they lie."""
        for e, row in zip(chosen, self.rows, strict=True):
            torch.mm(z_1L, self.w13[e], out=row)
        first, *others = torch.split(self.situ(self.h_KF).mul_(w_K1), 1)
        u_1L = torch.mm(first, self.w2[chosen[0]])
        for e, row in zip(chosen[1:], others, strict=True):
            u_1L.addmm_(row, self.w2[e])
        return u_1L

    def _many(self, z_BL: Tensor, idx_BK: Tensor, w_BK: Tensor) -> Tensor:
        """Each expert takes all its tokens at once."""
        flat = idx_BK.flatten()
        order = flat.argsort(stable=True)
        token = order // self.top_k
        load_E = flat.bincount(minlength=len(self.w13)).tolist()
        z, h, y = z_BL[token], z_BL.new_empty(len(flat), self.F2), z_BL.new_empty(len(flat), self.L)
        used = [(e, n) for e, n in enumerate(load_E) if n]
        counts = [n for _, n in used]
        for (e, _), a, out in zip(used, torch.split(z, counts), torch.split(h, counts), strict=True):
            torch.mm(a, self.w13[e], out=out)
        hidden = self.situ(h).mul_(w_BK.flatten()[order, None])
        for (e, _), a, out in zip(used, torch.split(hidden, counts), torch.split(y, counts), strict=True):
            torch.mm(a, self.w2[e], out=out)
        return z_BL.new_zeros(z_BL.shape).index_add_(0, token, y)
