"""Kimi Delta Attention on a GPU through flash-linear-attention's Triton kernels (package fla-core, extra `gpu`).

Differs from the reference in dtype alone: q, k, v and the products within a chunk are bf16, sums and state fp32.
Norm, decay and write strength are computed inside the kernels from the raw inputs. With `cu_seqlens` the list of
chunks is made on the device at a fixed size, so nothing waits for the host; documents of no tokens are allowed.
"""

import functools
import importlib.util
import os
import sys

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.numerics import wide

# looked up once, at import: a search for a package cannot be traced by torch.compile
_MISSING = None if importlib.util.find_spec("fla") else "the package fla-core is not installed; install longstep[gpu]"


def why_not(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    z_BTHK: Tensor,
    b_BTH: Tensor,
    a_log_H: Tensor,
    dt_bias_HK: Tensor,
    *,
    lower_bound: float,
    state_BHKV: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> str | None:
    if not q_BTHK.is_cuda:
        return f"the inputs are on {q_BTHK.device.type}, this form runs on cuda"
    if q_BTHK.dtype not in (torch.bfloat16, torch.float16):
        return f"the inputs are {q_BTHK.dtype}, this form takes 16-bit floats"
    if q_BTHK.shape[1] < 64:
        return "fewer tokens than one chunk"
    return _MISSING


@functools.cache
def pin_configs() -> int:
    """Give each of the package's kernels one launch configuration; returns how many kernels.

    Left alone, it tries some 200 of them when first used, and anew for packed and for single rows: minutes before the
    first token, and a choice that may differ between two runs. LONGSTEP_FLA_TUNE=1 leaves it alone.
    """
    if os.environ.get("LONGSTEP_FLA_TUNE") == "1":
        return 0
    from triton.runtime.autotuner import Autotuner, Config

    def distance(config: Config) -> tuple[float, ...]:
        """From tiles of 64, 4 warps and 2 stages, which fit a head dim of 64 to 128."""
        tiles = sum(abs(64 - size) for size in config.kwargs.values() if isinstance(size, int))
        return abs(config.num_warps - 4), tiles, abs(config.num_stages - 2)

    tuners: dict[int, Autotuner] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            for kernel in list(vars(module).values()):
                while not isinstance(kernel, Autotuner) and hasattr(kernel, "fn"):
                    kernel = kernel.fn
                if isinstance(kernel, Autotuner):
                    tuners[id(kernel)] = kernel
    for tuner in tuners.values():
        tuner.configs = [min(tuner.configs, key=distance)]
    return len(tuners)


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    z_BTHK: Tensor,
    b_BTH: Tensor,
    a_log_H: Tensor,
    dt_bias_HK: Tensor,
    *,
    lower_bound: float,
    state_BHKV: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    from fla.ops.kda import chunk_kda

    pin_configs()
    assert cu_seqlens is None or state_BHKV is None, "documents packed in one row start from nothing"
    o_BTHV, state = chunk_kda(
        q_BTHK,
        k_BTHK,
        v_BTHV,
        z_BTHK,
        b_BTH,
        A_log=a_log_H.float(),
        dt_bias=dt_bias_HK.float().reshape(-1),
        initial_state=None if state_BHKV is None else state_BHKV.float(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        safe_gate=True,
        lower_bound=lower_bound,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.long(),
        use_graph=cu_seqlens is not None,
    )
    return o_BTHV.float(), state if cu_seqlens is None else state[-1:]


if torch.cuda.is_available():  # finished kernels, nothing to compile; saying so loads the compiler, a second for others
    attend = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]


def short_conv_why_not(
    x_BTC: Tensor, w_CW: Tensor, tail_BWC: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> str | None:
    if not x_BTC.is_cuda:
        return f"the inputs are on {x_BTC.device.type}, this form runs on cuda"
    return None


def short_conv(
    x_BTC: Tensor, w_CW: Tensor, tail_BWC: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The reference without a wait for the host: shifted inputs, masked by their distance from the document's start.

    Elementwise throughout, so that torch.compile makes one kernel of it with its neighbours.
    """
    T, W = x_BTC.shape[1], w_CW.shape[1]
    if tail_BWC is None:
        padded = functional.pad(x_BTC, (0, 0, W - 1, 0))
    else:
        padded = torch.cat((tail_BWC.to(x_BTC.dtype), x_BTC), dim=1)
    since_start_T = None
    if cu_seqlens is not None:
        pos_T = torch.arange(T, device=x_BTC.device)
        starts = cu_seqlens[:-1].long()
        since_start_T = pos_T - starts[torch.searchsorted(starts, pos_T, right=True) - 1]
    y_BTC = wide(x_BTC) * wide(w_CW[:, W - 1])
    for back in range(1, W):
        shifted = wide(padded[:, W - 1 - back : W - 1 - back + T])
        if since_start_T is not None:
            shifted = shifted * (since_start_T >= back)[:, None]
        y_BTC = y_BTC + shifted * wide(w_CW[:, W - 1 - back])
    return functional.silu(y_BTC).to(x_BTC.dtype), padded[:, T:]
