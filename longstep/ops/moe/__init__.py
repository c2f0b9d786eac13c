"""A latent mixture of experts: choose on the full width, compute in the latent space.

`route(x_ND, w_ED, bias_E, top_k) -> (idx_NK, w_NK, score_NE)`
    score = sigmoid(x w^T) in fp32; idx = the top_k of score + bias; w = the chosen *unbiased* scores / their sum.
`experts(z_NL, idx_NK, w_NK, w13_EFL, w2_ELF, beta, linear_beta) -> u_NL`
    u = sum_k w_k w2[e_k] SiTU(w1[e_k] z, w3[e_k] z), summed in fp32, cast to z's dtype. w13 is [E, 2F, L], gate half
    first; w2 is [E, L, F]. The norm and the projection up come after, in the layer.
`quantile_bias(score_NE, bias_E, top_k) -> bias_E`
    The bias under which each expert would have been chosen by top_k / E of these tokens, mean 0: training's balancing,
    frozen at inference. `bias` is the one that was used with these scores.

Source: Kimi K3 technical report (LatentMoE, Quantile Balancing), Moonshot's modeling code.
"""

from longstep.ops.forms import Op
from longstep.ops.moe import grouped, reference

route = Op("moe.route", reference.route)
experts = Op("moe.experts", reference.experts)
quantile_bias = Op("moe.quantile_bias", reference.quantile_bias)

route.add("one by one", grouped.route, suits=grouped.route_why_not)
experts.add("grouped", grouped.experts, suits=grouped.why_not)
