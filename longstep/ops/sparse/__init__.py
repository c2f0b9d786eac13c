"""Latent attention over selected positions: what Gated DSA does after its indexer has chosen.

`attend(q_BTHQ, kv_BSC, w_kvb_HML, selected_BTP) -> o_BTHV`
    As `mla.attend`, but query t sees exactly the positions selected[t], -1 standing for none (at least one must be
    there). All heads share the choice. With every earlier position selected it *is* `mla.attend`.

Two forms: gathered (few queries: only the selected latents are read) and masked (many queries).
"""

from longstep.ops.forms import Op
from longstep.ops.sparse import reference

attend = Op("sparse.attend", reference.attend)
