"""The decoder is the network: logits beside the plain form's, in all the ways in which single tokens are computed."""

from dataclasses import replace

import pytest
import torch
from small_network import CONFIG, build, rel

from longstep.model.cache import PAGE, Cache
from longstep.model.config import DSAConfig, ModelConfig, preset
from longstep.model.decode import prepare
from longstep.model.network import Model

BOUND = 1e-10  # in float64


def pair(cfg: ModelConfig) -> tuple[Model, Model]:
    """The same float64 weights twice: plain, and with a decoder."""
    plain, prepared = build(cfg), build(cfg)
    prepare(prepared)
    return plain, prepared


def steps(model: Model, ids_BT: torch.Tensor, prompts: list[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Logits [B, steps, vocab] after prompts of different lengths, all sequences decoding together."""
    cache = Cache(model.cfg, len(prompts), 2048, dtype=dtype)
    slots = [cache.alloc() for _ in prompts][::-1]
    for slot, row, n in zip(slots, ids_BT, prompts, strict=True):
        model(row[None, :n], cache=cache, slots=[slot])
    out = []
    for step in range(ids_BT.shape[1] - max(prompts)):
        tokens = torch.stack([row[n + step] for row, n in zip(ids_BT, prompts, strict=True)])[:, None]
        out.append(model.logits(model(tokens, cache=cache, slots=slots)))
    return torch.cat(out, 1)


NANO = replace(preset("nano"), vocab_size=100, dsa=DSAConfig(num_heads=2, head_dim=16, top_k=24))


@pytest.mark.parametrize("cfg", [CONFIG, CONFIG.as_mla(), NANO, NANO.as_mla()], ids=["dsa", "mla", "nano", "nano mla"])
@pytest.mark.parametrize("prompts", [[3], [70], [30, 5], [5, 66, 40, 1, 17]], ids=str)
def test_decoder_is_the_plain_form(cfg, prompts):
    plain, prepared = pair(cfg)
    torch.manual_seed(4)
    ids = torch.randint(cfg.vocab_size, (len(prompts), max(prompts) + 12))
    got, want = steps(prepared, ids, prompts), steps(plain, ids, prompts)
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"


def test_decoder_reads_scattered_pages_and_slots():
    """A sequence that had to jump over another's page, in slots that do not follow one another."""
    results = []
    for model in pair(CONFIG):
        cache = Cache(CONFIG, 3, 6 * PAGE, dtype=torch.float64)
        slots = [cache.alloc() for _ in range(3)][::2]
        torch.manual_seed(5)
        for slot, num_tokens in zip(slots * 2, (10, 10, 4 * PAGE, 20), strict=True):
            model(torch.randint(CONFIG.vocab_size, (1, num_tokens)), cache=cache, slots=[slot])
        assert cache._pages[slots[0]] == [0, 1, 2, 5, 4]
        ids = torch.randint(CONFIG.vocab_size, (2, 8))
        results.append(torch.cat([model(ids[:, t : t + 1], cache=cache, slots=slots) for t in range(8)], 1))
    assert (error := rel(results[1], results[0])) < BOUND, f"{error:.1e}"


def test_equal_scores_go_to_the_earlier_position():
    """A repeated token in a network without states has equal index keys: more than top_k positions share a score."""
    plain, prepared = pair(replace(CONFIG, attention_layers=(1, 2, 3, 4, 5)))
    ids = torch.full((1, 30), 7)
    got, want = steps(prepared, ids, [20]), steps(plain, ids, [20])
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"


def test_preparing_changes_no_value_and_shares_memory():
    plain, prepared = pair(CONFIG)
    for (name, a), b in zip(plain.state_dict().items(), prepared.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    q, k = prepared.layers[0].attn.q_proj.weight, prepared.layers[0].attn.k_proj.weight
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    ids = torch.randint(CONFIG.vocab_size, (1, 50))
    assert rel(prepared(ids), plain(ids)) < BOUND


def test_other_dtypes_are_refused():
    with pytest.raises(AssertionError, match="takes fp32"):
        prepare(build(CONFIG).bfloat16())


def test_a_cache_of_another_dtype_is_refused():
    model = pair(CONFIG)[1]
    cache = Cache(CONFIG, 1, 64, dtype=torch.float32)
    with pytest.raises(AssertionError, match=r"the cache torch\.float32"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache, slots=[cache.alloc()])


def test_fp32_is_near_float64():
    """The dtype that people run: within 1e-5 of the float64 network, as the plain form is."""
    torch.manual_seed(0)
    exact, prepared = (Model(preset("nano")).eval().requires_grad_(False) for _ in range(2))
    exact.load_state_dict(prepared.state_dict())
    prepare(prepared)
    ids = torch.randint(8192, (1, 60))
    got, want = steps(prepared, ids, [40], torch.float32), steps(exact.double(), ids, [40])
    assert (error := rel(got.double(), want)) < 1e-5, f"{error:.1e}"


def test_greedy_tokens_are_the_same():
    """A hundred greedy tokens of a fresh network, fed back."""
    torch.manual_seed(0)
    plain = Model(preset("nano")).eval().requires_grad_(False)
    prepared = Model(preset("nano")).eval().requires_grad_(False)
    prepared.load_state_dict(plain.state_dict())
    prepare(prepared)
    runs = []
    for model in (plain, prepared):
        cache, tokens = Cache(model.cfg, 1, 256), torch.tensor([[5]])
        slot, run = cache.alloc(), []
        for _ in range(100):
            tokens = model.logits(model(tokens, cache=cache, slots=[slot]))[:, -1].argmax(-1, keepdim=True)
            run.append(tokens.item())
        runs.append(run)
    assert runs[0] == runs[1]
