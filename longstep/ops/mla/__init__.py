"""Multi-head latent attention, dense and causal, over what the cache keeps: one kv latent and one shared key per token.

`attend(q_BTHQ, kv_BSC, w_kvb_HML, *, first=0, cu_seqlens=None) -> o_BTHV`
    kv [B, S, C = L + R]: the normalised latent c, then the key part r that all heads share. w_kvb [H, N + V, L] makes
    per head a key part and a value out of c; q [B, T, H, Q = N + R].
        k_h = [w_k,h c ; r],  o_h = softmax_(s <= first + t)(q_h . k_h Q^-1/2) w_v,h c
    Query t stands at position first + t and S = first + T. Nothing is rotated. Softmax in fp32, output in q's dtype.
    With `cu_seqlens` (int, [documents + 1], from 0 to T; B is 1, first is 0) no document sees another.

Two forms of one function: expanded (keys and values built, for many queries) and absorbed (w_k taken into the query,
w_v applied after the sum, for few). The output gate is the layer's: o * sigmoid(W_g x).
Source: DeepSeek-V2; Kimi K3's modeling code.
"""

from longstep.ops.forms import Op
from longstep.ops.mla import reference, varlen

attend = Op("mla.attend", reference.attend)
attend.add("varlen", varlen.attend, suits=varlen.why_not)
