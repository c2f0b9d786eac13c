"""What a model is, as data: one frozen dataclass per part, each of which checks itself.

Presets: `k3` and `k3.1-pro` are the released shapes (config.json of moonshotai/Kimi-K3; the indexer of K3.1 Pro as read
by llama.cpp); `micro`, `tiny` and `nano` are the same graph, small. A preset is data: no code asks for its name.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from longstep.errors import CheckpointError, UserError


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise UserError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class KDAConfig:
    """Kimi Delta Attention, one layer."""

    num_heads: int = 96
    head_dim: int = 128  # keys and values alike
    conv_width: int = 4  # tokens, causal
    gate_rank: int = 128  # inner width of the decay's two-step projection
    gate_lower_bound: float = -5.0  # log-decay is lower_bound * sigmoid(.), not a clamp
    a_log_stored: int = 128  # entries of A_log on disk: num_heads, then exact zeros

    def __post_init__(self) -> None:
        _check(
            -5.0 <= self.gate_lower_bound < 0,
            f"kda.gate_lower_bound is {self.gate_lower_bound}, expected -5 <= x < 0: from 0 on the state would grow, "
            "below -5 the decay of one 16-token tile leaves the range of fp32; use -5.0 as released",
        )
        _check(
            self.a_log_stored >= self.num_heads,
            f"kda.a_log_stored is {self.a_log_stored}, expected at least num_heads = {self.num_heads}; raise it",
        )
        _check(self.conv_width >= 2, f"kda.conv_width is {self.conv_width}, expected 2 or more; use 4 as released")

    @property
    def width(self) -> int:
        """Channels of q, of k, of v and of the output gate."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class MLAConfig:
    """Gated multi-head latent attention, one layer. `d_shared` is released as qk_rope_head_dim and never rotated."""

    num_heads: int = 96
    q_lora: int = 1536
    kv_lora: int = 512
    d_nope: int = 128  # key dims per head that come out of the kv latent
    d_shared: int = 64  # key dims that all heads share, straight from the input
    d_v: int = 128
    latent_norm_eps: float = 1e-6  # the author's own code; two servers use 1e-5

    @property
    def d_qk(self) -> int:
        return self.d_nope + self.d_shared

    @property
    def d_cache(self) -> int:
        """Values kept per token and layer: the normalised kv latent, then the shared key."""
        return self.kv_lora + self.d_shared


@dataclass(frozen=True, kw_only=True, slots=True)
class DSAConfig:
    """The lightning indexer that makes Gated DSA of Gated MLA: chooses `top_k` earlier positions for each query."""

    num_heads: int = 32
    head_dim: int = 128
    top_k: int = 2048
    key_norm_eps: float = 1e-5  # LayerNorm with bias [llama.cpp's reading; DeepSeek-V3.2 has 1e-6]


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEConfig:
    """Latent mixture of experts, one layer. `d_shared` is the width of all shared experts, fused into one MLP.

    `stored` is how the routed experts' weights lie on disk; everything else lies in bf16 or fp32.
    """

    num_experts: int = 896
    top_k: int = 16
    d_latent: int = 3584
    d_expert: int = 3072
    d_shared: int = 6144
    stored: Literal["mxfp4", "bf16"] = "mxfp4"

    def __post_init__(self) -> None:
        _check(
            0 < self.top_k < self.num_experts,
            f"moe.top_k is {self.top_k} of {self.num_experts} experts, expected 0 < top_k < num_experts; lower it",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """The image tower and its projector, counted and not yet built."""

    num_layers: int = 27
    d_model: int = 1024
    d_qkv: int = 1536  # num_heads x head_dim
    d_mlp: int = 4096
    patch: int = 14  # pixels, a square
    position_grid: int = 64  # learned positions along each side
    merge: int = 4  # patches that become one row of the text model


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The whole network, its text part. Gated DSA when `dsa` is given, Gated MLA otherwise, over the same weights."""

    name: str
    vocab_size: int = 163840
    d_model: int = 7168
    num_layers: int = 93
    attention_layers: tuple[int, ...]  # 1-based, as released; every other layer is KDA
    num_dense_layers: int = 1  # the first layers have a plain MLP, the others LatentMoE
    d_dense: int = 33792
    kda: KDAConfig
    mla: MLAConfig
    dsa: DSAConfig | None = None
    moe: MoEConfig
    vision: VisionConfig | None = None
    attn_res_block: int = 12  # layers, not sub-layers
    norm_eps: float = 1e-5
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    max_context: int = 1048576  # positions
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        layers = self.attention_layers
        _check(
            list(layers) == sorted(set(layers)) and all(1 <= n <= self.num_layers for n in layers),
            f"{self.name}: attention_layers is {layers}, expected rising 1-based numbers up to {self.num_layers}",
        )
        _check(
            0 <= self.num_dense_layers <= self.num_layers,
            f"{self.name}: num_dense_layers is {self.num_dense_layers}, expected 0 to num_layers = {self.num_layers}",
        )
        _check(
            self.attn_res_block >= 1, f"{self.name}: attn_res_block is {self.attn_res_block}, expected 1 layer or more"
        )

    def is_attention(self, layer: int) -> bool:
        """Whether 0-based `layer` is MLA or DSA; the others are KDA."""
        return layer + 1 in self.attention_layers

    def is_dense(self, layer: int) -> bool:
        """Whether 0-based `layer` has a plain MLP; the others are LatentMoE."""
        return layer < self.num_dense_layers

    @property
    def num_attention(self) -> int:
        return len(self.attention_layers)

    @property
    def num_kda(self) -> int:
        return self.num_layers - self.num_attention

    def as_mla(self) -> "ModelConfig":
        """The K3 form: the same network with dense attention and no indexer. Its weights are a subset of ours."""
        return replace(self, dsa=None)


def _every_fourth_and_the_last(num_layers: int) -> tuple[int, ...]:
    """K3's layout, 1-based: 4, 8, 12, ... and the last layer."""
    return tuple(n for n in range(1, num_layers + 1) if n % 4 == 0 or n == num_layers)


_K3 = ModelConfig(
    name="k3",
    attention_layers=_every_fourth_and_the_last(93),
    kda=KDAConfig(),
    mla=MLAConfig(),
    moe=MoEConfig(),
    vision=VisionConfig(),
)

_MICRO = ModelConfig(
    name="micro",
    vocab_size=8192,
    d_model=320,
    num_layers=9,
    attention_layers=_every_fourth_and_the_last(9),
    d_dense=1024,
    kda=KDAConfig(num_heads=5, head_dim=64, gate_rank=64, a_log_stored=5),
    mla=MLAConfig(num_heads=5, q_lora=160, kv_lora=128, d_nope=64, d_shared=32, d_v=64),
    dsa=DSAConfig(num_heads=4, head_dim=32, top_k=512),
    moe=MoEConfig(num_experts=16, top_k=4, d_latent=160, d_expert=160, d_shared=320, stored="bf16"),
    attn_res_block=3,
    max_context=32768,
)

_TINY = replace(
    _MICRO,
    name="tiny",
    d_model=192,
    d_dense=640,
    kda=KDAConfig(num_heads=3, head_dim=64, gate_rank=64, a_log_stored=3),
    mla=MLAConfig(num_heads=3, q_lora=96, kv_lora=96, d_nope=64, d_shared=32, d_v=64),
    moe=MoEConfig(num_experts=16, top_k=4, d_latent=112, d_expert=96, d_shared=192, stored="bf16"),
)

_NANO = replace(
    _MICRO,
    name="nano",
    d_model=64,
    num_layers=5,
    attention_layers=_every_fourth_and_the_last(5),
    d_dense=192,
    kda=KDAConfig(num_heads=2, head_dim=32, gate_rank=32, a_log_stored=2),
    mla=MLAConfig(num_heads=2, q_lora=48, kv_lora=48, d_nope=32, d_shared=16, d_v=32),
    dsa=DSAConfig(num_heads=2, head_dim=16, top_k=128),
    moe=MoEConfig(num_experts=8, top_k=2, d_latent=32, d_expert=48, d_shared=64, stored="bf16"),
    attn_res_block=2,
    max_context=8192,
)

_PRESETS = {c.name: c for c in (_K3, replace(_K3, name="k3.1-pro", dsa=DSAConfig()), _MICRO, _TINY, _NANO)}
PRESET_NAMES = tuple(_PRESETS)


def preset(name: str) -> ModelConfig:
    """The preset of that name. Raises UserError that lists the names."""
    if name not in _PRESETS:
        raise UserError(f"preset {name!r} is unknown, expected one of {', '.join(PRESET_NAMES)}; choose one of these")
    return _PRESETS[name]


def to_json(cfg: ModelConfig) -> bytes:
    """The text of `config.json`, which lies beside the weights."""
    return msgspec.json.format(msgspec.json.encode(cfg), indent=2) + b"\n"


def from_json(data: bytes) -> ModelConfig:
    """Exact inverse of `to_json`. Raises CheckpointError on anything else, unknown fields included."""
    advice = "restore the file from where the weights came from, or export the model again"
    try:
        raw: Any = msgspec.json.decode(data)
        cfg = msgspec.convert(raw, ModelConfig)
    except (msgspec.DecodeError, msgspec.ValidationError, UserError) as e:
        raise CheckpointError(f"config.json cannot be read: {e}; {advice}") from e
    if unknown := _unknown_fields(raw, msgspec.to_builtins(cfg)):
        raise CheckpointError(f"config.json has fields that this version does not know: {', '.join(unknown)}; {advice}")
    if small := _below_one(raw):
        raise CheckpointError(f"config.json: {', '.join(small)} is below 1, expected a count or a size; {advice}")
    return cfg


def _unknown_fields(raw: Any, known: Any, path: str = "") -> list[str]:
    if not (isinstance(raw, dict) and isinstance(known, dict)):
        return []
    return [
        name
        for key, value in raw.items()
        for name in ([path + key] if key not in known else _unknown_fields(value, known[key], path + key + "."))
    ]


def _below_one(raw: dict[str, Any], path: str = "") -> list[str]:
    """Fields with whole numbers below 1: none of them can be, but that there may be no dense layer."""
    found: list[str] = []
    for key, value in raw.items():
        if isinstance(value, dict):
            found += _below_one(value, f"{path}{key}.")
        elif isinstance(value, int) and value < 1 and path + key != "num_dense_layers":
            found.append(path + key)
    return found
