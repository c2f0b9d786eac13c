"""The lightning indexer of DSA: which earlier positions a query attends to.

`scores(q_BTHI, k_BSI, w_BTH, *, first=0, cu_seqlens=None) -> [B, T, S]`
    I(t, s) = sum_h w[t, h] H^-1/2 I^-1/2 relu(q[t, h] . k[s])   in fp32 for s <= first + t, else -inf
    q and the head weights w of the query, one key per position for all heads; S = first + T. With `cu_seqlens` other
    documents are -inf too.
`select(scores_BTS, top_k) -> [B, T, min(top_k, S)]`, int64
    The positions of the top_k highest finite scores, rising; of equal scores the earlier position; -1 where there are
    fewer. Deterministic: the same scores give the same choice on every device. No gradient.

Source: DeepSeek-V3.2 (the operator that K3.1 reuses); no rotary and no Hadamard rotation here.
"""

from longstep.ops.forms import Op
from longstep.ops.index import reference

scores = Op("index.scores", reference.scores)
select = Op("index.select", reference.select)
