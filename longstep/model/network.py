"""The whole network: embedding, layers with Block AttnRes, final norm, head. Start reading here, then layers.py.

One object for sampling and for training: `forward` takes whole sequences, packed documents, or the next tokens of
cached sequences, and computes the same function.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from longstep.model.cache import Cache
from longstep.model.config import ModelConfig
from longstep.model.layers import KDA, LatentMoE, Layer, Linear, Mix, RMSNorm, Span
from longstep.ops.numerics import wide

if TYPE_CHECKING:
    from longstep.model.decode import Decoder


class Model(nn.Module):
    """Kimi K3 (Gated MLA) or K3.1 (Gated DSA, if `cfg.dsa`). Text only.

    Built in torch's default dtype and initialised for training from nothing. `compute_dtype` is that of activations;
    None means the weights' own.
    """

    def __init__(self, cfg: ModelConfig, compute_dtype: torch.dtype | None = None):
        super().__init__()
        self.cfg = cfg
        self.compute_dtype = compute_dtype
        self.embed = nn.Embedding(cfg.vocab_size, cfg.d_model)
        self.layers = nn.ModuleList(Layer(cfg, n) for n in range(cfg.num_layers))
        self.output_mix = Mix(cfg)
        self.norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.head = Linear(cfg.d_model, cfg.vocab_size)
        self.decoder: Decoder | None = None  # set by decode.prepare
        initialise(self)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        cache: Cache | None = None,
        slots: Sequence[int] | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, T, D] after the final norm; `logits` makes scores of them.

        With `cu_seqlens` (int, [documents + 1], from 0 to T; B is 1) the row holds documents that do not see each
        other. With `cache`, row b holds the next T tokens of sequence slots[b], whose lengths may differ; the cache is
        advanced, and raises UserError when it is full, before anything is computed.
        """
        B, T = tokens_BT.shape
        span = Span(cu_seqlens=cu_seqlens)
        if cache is not None:
            assert slots is not None, "say which slots of the cache the rows are"
            assert len(slots) == len(set(slots)) == B, f"{B} rows need {B} different slots, not {slots}"
            assert cu_seqlens is None, "cached sequences are rows, not packed documents"
            first = cache.extend(slots, T)
            if T == 1 and self.decoder is not None:
                return self.decoder.step(tokens_BT, cache, slots, first)
            span = Span(cache=cache, slots=slots, first=first)
        p = self.embed(tokens_BT)
        p = p.to(self.compute_dtype or p.dtype)
        blocks: tuple[Tensor, ...] = ()
        for layer in self.layers:
            blocks, p = layer(blocks, p, span)
        hidden: Tensor = self.norm(self.output_mix(blocks, p))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [..., vocab], computed in fp32 at least."""
        return functional.linear(wide(hidden), wide(self.head.weight))


@torch.no_grad()
def initialise(model: Model) -> None:
    """Start values for training from nothing, drawn from torch's default generator.

    - Every matrix normal with `initializer_range` (released: 0.02); those that write into the stream (o_proj,
      down_proj, latent_up_proj) and each expert's w2 divided by sqrt(2 x layers), as in GPT-2, so that depth does not
      add variance.
    - A_log 0 [technical report]. The decay's bias makes each channel forget 0.001 to 0.1 (log-uniform) per token at
      z = 0: flash-linear-attention's and Mamba-2's time steps, taken back through this gate [inferred].
    - Convolutions uniform in +-1/sqrt(width), torch's default for them.
    - Mix queries 0 (a plain mean), norms 1, balance bias 0.
    """
    cfg = model.cfg
    std, out_std = cfg.initializer_range, cfg.initializer_range / math.sqrt(2 * cfg.num_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            is_output = name.endswith(("o_proj", "down_proj", "latent_up_proj")) and not name.endswith(
                "latent_down_proj"
            )
            nn.init.normal_(module.weight, std=out_std if is_output else std)
        elif isinstance(module, LatentMoE):
            nn.init.normal_(module.router, std=std)
            nn.init.normal_(module.w13_EFL, std=std)
            nn.init.normal_(module.w2_ELF, std=out_std)
        elif isinstance(module, KDA):
            for w in (module.q_conv, module.k_conv, module.v_conv):
                nn.init.uniform_(w, -1 / math.sqrt(w.shape[1]), 1 / math.sqrt(w.shape[1]))
            share = torch.empty_like(module.dt_bias).uniform_(math.log(0.001), math.log(0.1)).exp()
            module.dt_bias.copy_(torch.logit(share / -cfg.kda.gate_lower_bound))
