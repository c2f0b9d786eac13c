"""The mix of Block Attention Residuals: attention over depth, with a learned query that no input changes.

    s_j = sum_c w_norm[c] w_query[c] v_j[c] / sqrt(mean(v_j^2) + eps)
    mix = sum_j softmax_j(s_j) v_j

Contract: sources v_j [B, T, D], the finished blocks in order and then the open block's running sum (J of them, 1 or
more); w_norm, w_query [D]. All in fp32, the values raw (not normalised), no scale; cast back to the sources' dtype.
Source: Kimi K3 technical report, Moonshot's modeling code.
"""

from longstep.ops.attn_res import fused, reference
from longstep.ops.forms import Op

mix = Op("attn_res.mix", reference.mix)
mix.add("fused", fused.mix, suits=fused.why_not)
