"""Kimi Delta Attention: a short convolution, then a gated delta rule with a decay per channel.

`short_conv(x_BTC, w_CW, tail_BWC=None, cu_seqlens=None) -> (y_BTC, tail_BWC)`
    y_t[c] = SiLU(sum_i w[c, i] x_(t - W + 1 + i)[c]), causal, depthwise. The tail is the last W - 1 inputs, before
    (zeros if None) and after; accumulated in fp32, returned in x's dtype.

`attend(q, k, v, z, b, a_log, dt_bias, *, lower_bound, state_BHKV=None, cu_seqlens=None) -> (o_BTHV, state_BHKV)`
    q, k [B, T, H, K] and v [B, T, H, V] after the convolution, raw: q and k are L2-normalised here (1e-6 inside the
    root) and q is scaled by K^-1/2. z [B, T, H, K] is the decay's projection, b [B, T, H] the write strength's.
        g    = lower_bound * sigmoid(exp(a_log_H) (z + dt_bias_HK))   log-decay; a_log is one number per head
        beta = sigmoid(b)
        S   <- Diag(e^g_t) S;  S <- S + beta_t k_t (v_t - S^T k_t)^T;  o_t = S^T q_t   (read after the write)
    All of it in fp32, whatever the inputs are; output and state [B, H, K, V] (key dim first) are fp32. State None is
    zero; the state given is not written to.

With `cu_seqlens` (int, [documents + 1], from 0 to T; B is 1) no document sees another: convolution and state start
from nothing in each; the tail and state that come back are then of no use.
Source: flash-linear-attention's `naive_recurrent_kda` and gate; Kimi K3 technical report.
"""

from longstep.ops.forms import Op
from longstep.ops.kda import fla, reference

short_conv = Op("kda.short_conv", reference.short_conv)
attend = Op("kda.attend", reference.attend)

short_conv.add("shifted", fla.short_conv, suits=fla.short_conv_why_not)
attend.add("fla", fla.attend, suits=fla.why_not)
