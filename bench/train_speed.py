"""Training on one GPU: first the fast forms against their references, then tokens per second.

    python bench/train_speed.py                     checks, then micro at rows of 8,192
    python bench/train_speed.py --profile           and where the time goes, kernel by kernel

Exit code 1 if a form is off or did not run. Such a form is left out of what follows, so one run tells all.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from longstep.model.config import preset
from longstep.model.network import Model
from longstep.ops import attn_res, kda, mla, moe
from longstep.ops.attn_res import fused
from longstep.ops.forms import Op
from longstep.ops.kda import fla
from longstep.ops.mla import varlen
from longstep.ops.moe import grouped
from longstep.train.loop import TrainConfig, Trainer
from longstep.train.loss import head_cross_entropy
from longstep.train.optim import newton_schulz
from longstep.train.pack import ShardWriter, Source

GPU = torch.device("cuda")
BF16_LIMIT = 0.02  # relative error of a bf16 form against fp32; one rounding is 0.002
failures: list[str] = []


def relative(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


@contextmanager
def only_references() -> Iterator[None]:
    ops: list[Op] = [kda.attend, kda.short_conv, mla.attend, moe.route, moe.experts, attn_res.mix]
    kept = [op._fast for op in ops]
    for op in ops:
        op._fast = []
    try:
        yield
    finally:
        for op, fast in zip(ops, kept, strict=True):
            op._fast = fast


def check(name: str, fast: Callable, slow: Callable, inputs: dict[str, Tensor], limit: float, drop: Op | None) -> None:
    """Outputs and gradients of `fast` (inputs as given) against `slow` (inputs in fp32). Prints relative errors."""
    try:
        a = {n: t.detach().clone().requires_grad_() for n, t in inputs.items()}
        b = {n: t.detach().float().clone().requires_grad_() for n, t in inputs.items()}
        got, want = fast(**a), slow(**b)
        weight = torch.randn(want.shape, device=want.device)
        (got.float() * weight).sum().backward()
        (want * weight).sum().backward()
        errors = {"out": relative(got, want)} | {n: relative(a[n].grad, b[n].grad) for n in inputs}
        worst = max(errors.values())
        verdict = "ok" if worst < limit else "OFF"
        print(f"{verdict:>4}  {name:<22} " + "  ".join(f"{n} {e:.1e}" for n, e in errors.items()), flush=True)
        if not worst < limit:
            raise ArithmeticError(f"{name}: relative error {worst:.1e}, limit {limit:.0e}")
    except Exception as error:
        if not isinstance(error, ArithmeticError):
            traceback.print_exc()
        failures.append(f"{name}: {error}")
        if drop is not None:
            print(f"      {name} is left out from here on")
            drop._fast = []


def documents(num_tokens: int, rng: random.Random, low: int, high: int) -> list[int]:
    ends = [0]
    while ends[-1] < num_tokens:
        ends.append(min(num_tokens, ends[-1] + rng.randint(low, high)))
    return ends


def check_forms() -> None:
    torch.manual_seed(0)
    T, H, K = 1000, 5, 64
    ends = documents(T, random.Random(0), 1, 300)
    real = torch.tensor(ends, dtype=torch.int32, device=GPU)
    padded = torch.cat((real, real.new_full((7,), T)))  # documents of no tokens at the end

    def half(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, device=GPU)).bfloat16()

    def full(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, device=GPU)

    inputs = {n: half(1, T, H, K) for n in ("q_BTHK", "k_BTHK", "v_BTHV")}
    inputs |= {"z_BTHK": half(1, T, H, K, scale=3.0), "b_BTH": half(1, T, H)}
    inputs |= {"a_log_H": full(H, scale=0.3), "dt_bias_HK": full(H, K) - 3}
    for name, bound in (("kda.attend packed", real), ("kda.attend padded", padded)):
        check(
            name,
            lambda bound=bound, **x: fla.attend(**x, lower_bound=-5.0, cu_seqlens=bound)[0],
            lambda **x: kda.attend.reference(**x, lower_bound=-5.0, cu_seqlens=real)[0],
            inputs,
            BF16_LIMIT,
            kda.attend,
        )
    check(
        "kda.attend one row",
        lambda **x: fla.attend(**x, lower_bound=-5.0)[0],
        lambda **x: kda.attend.reference(**x, lower_bound=-5.0)[0],
        inputs,
        BF16_LIMIT,
        None,
    )
    conv = torch.compile(fla.short_conv, dynamic=False)
    check(
        "kda.short_conv",
        lambda x, w: conv(x, w, None, padded)[0],
        lambda x, w: kda.short_conv.reference(x, w, None, real)[0],
        {"x": full(1, T, 3 * H * K), "w": full(3 * H * K, 4)},
        1e-5,
        kda.short_conv,
    )
    N, R, L, V = 64, 32, 128, 64
    varlen.set_longest_document(None)
    check(
        "mla.attend",
        lambda q, kv, w: varlen.attend(q, kv, w, cu_seqlens=padded),
        lambda q, kv, w: mla.attend.reference(q, kv, w, cu_seqlens=real),
        {"q": half(1, T, H, N + R), "kv": half(1, T, L + R), "w": full(H, N + V, L, scale=L**-0.5)},
        BF16_LIMIT,
        mla.attend,
    )
    E, C, F, top = 16, 160, 160, 4
    routed = torch.compile(grouped.route, dynamic=False)
    bias = 0.1 * torch.randn(E, device=GPU)

    def dense(form: Callable, x: Tensor, w: Tensor) -> Tensor:
        idx, weight, score = form(x, w, bias, top)
        return torch.zeros_like(score).scatter(1, idx, weight)

    check(
        "moe.route",
        lambda x, w: dense(routed, x, w),
        lambda x, w: dense(moe.route.reference, x, w),
        {"x": full(T, 320), "w": full(E, 320, scale=0.1)},
        1e-4,
        moe.route,
    )
    score = torch.rand(T, E, device=GPU)
    score[:, 3] = -1  # an expert that nobody chose
    idx = score.topk(top).indices
    run = torch.compile(grouped.experts, dynamic=False)
    for name, form in (("moe.experts eager", grouped.experts), ("moe.experts compiled", run)):
        check(
            name,
            lambda form=form, **x: form(x["z"], idx, x["w"], x["w13"], x["w2"]),
            lambda **x: moe.experts.reference(x["z"], idx, x["w"], x["w13"], x["w2"]),
            {
                "z": half(T, C),
                "w": torch.rand(T, top, device=GPU),
                "w13": full(E, 2 * F, C, scale=C**-0.5),
                "w2": full(E, C, F, scale=F**-0.5),
            },
            BF16_LIMIT,
            moe.experts,
        )
    mix = torch.compile(fused.mix, dynamic=False)
    check(
        "attn_res.mix",
        lambda a, b, c, n, q: mix((a, b, c), n, q, 1e-5),
        lambda a, b, c, n, q: attn_res.mix.reference((a, b, c), n, q, 1e-5),
        {s: full(1, T, 320) for s in "abc"} | {"n": full(320), "q": full(320)},
        1e-4,
        attn_res.mix,
    )
    target, weight = torch.randint(0, 8192, (T,), device=GPU), torch.rand(T, device=GPU)
    check(
        "head cross-entropy",
        lambda h, w: head_cross_entropy(h, w, target, weight)[None],
        lambda h, w: ((h @ w.T).log_softmax(-1).gather(1, target[:, None])[:, 0] * -weight).sum()[None],
        {"h": half(T, 320), "w": full(8192, 320, scale=0.05)},
        BF16_LIMIT,
        None,
    )
    x = torch.randn(3, 320, 160, device=GPU)
    s = torch.linalg.svdvals(newton_schulz(x.bfloat16()).float())
    ok = bool((s > 0.5).all() and (s < 1.5).all())
    print(f"{'ok' if ok else 'OFF':>4}  newton_schulz          singular values {s.min():.2f} to {s.max():.2f}")
    if not ok:
        failures.append("newton_schulz: singular values out of range")


def check_model(name: str) -> None:
    """Hidden states and gradients of the whole network: the fast bf16 path may be no worse than the plain bf16 one."""
    cfg = preset(name).as_mla()
    T = 1024
    rng = random.Random(1)
    tokens = torch.randint(0, cfg.vocab_size, (1, T), device=GPU)
    ends = torch.tensor(documents(T, rng, 20, 400), dtype=torch.int32, device=GPU)
    padded = torch.cat((ends, ends.new_full((5,), T)))
    weight = torch.randn(1, T, cfg.d_model, device=GPU)

    def run(dtype: torch.dtype | None, bounds: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(0)
        model = Model(cfg, compute_dtype=dtype).to(GPU).train()
        hidden = model(tokens, cu_seqlens=bounds)
        (hidden.float() * weight).sum().backward()
        return hidden, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    with only_references():
        want, want_grad = run(None, ends)
        plain, plain_grad = run(torch.bfloat16, ends)
    got, got_grad = run(torch.bfloat16, padded)
    print(f"      whole {name}: hidden {relative(got, want):.1e} (plain bf16 {relative(plain, want):.1e})")
    worse = []
    for n, g in want_grad.items():
        ours, floor = relative(got_grad[n], g), relative(plain_grad[n], g)
        if ours > 2 * floor + 0.02:
            worse.append(f"{n} {ours:.1e} (plain bf16 {floor:.1e})")
    hidden_ok = relative(got, want) < 2 * relative(plain, want) + 0.01
    ok = hidden_ok and not worse
    print(
        f"{'ok' if ok else 'OFF':>4}  {len(want_grad)} gradients" + "".join(f"\n      {w}" for w in worse), flush=True
    )
    if not ok:
        failures.append(f"whole model: {len(worse)} gradients worse than plain bf16")


def write_documents(folder: Path, num_tokens: int, low: int, high: int) -> None:
    rng = random.Random(2)
    writer = ShardWriter(folder, tokenizer="bench")
    generator = torch.Generator().manual_seed(0)
    while num_tokens > 0:
        n = rng.randint(low, high)
        writer.add(torch.randint(0, 8192, (n,), generator=generator).numpy())
        num_tokens -= n
    writer.close()


def speed(args: argparse.Namespace, folder: Path) -> None:
    source = folder / "source"
    if not source.exists():
        write_documents(source, 8 * args.tokens, 200, 4000)
    cfg = TrainConfig(
        stage="sft",
        preset=args.preset,
        sources=(Source(folder=source),),
        out=folder / "run",
        tokenizer_file=source / "index.json",
        steps=1 << 30,
        batch_tokens=args.tokens,
        row_tokens=args.row,
        max_documents=args.documents,
        compile=not args.eager,
    )
    trainer = Trainer(cfg, GPU, 0, 1)
    batches = trainer.packer.batches()
    for _ in range(3):
        started = time.perf_counter()
        loss, norm, ratio = trainer.update(next(batches), 1e-4)
        torch.cuda.synchronize()
        took_s = time.perf_counter() - started
        print(f"      warm-up {took_s:.1f} s  loss {float(loss):.3f}  load {float(ratio.max()):.2f}", flush=True)
    torch.cuda.reset_peak_memory_stats()
    ready = [next(batches) for _ in range(8)]
    torch.cuda.synchronize()
    started = time.perf_counter()
    host_s = 0.0
    for i in range(args.steps):
        begun = time.perf_counter()
        loss, norm, ratio = trainer.update(ready[i % len(ready)], 1e-3)
        host_s += time.perf_counter() - begun
    torch.cuda.synchronize()
    step_s = (time.perf_counter() - started) / args.steps
    print(
        f"      {args.preset}{' eager' if args.eager else ''}, rows {args.row}, {args.tokens} tokens an update: "
        f"{args.tokens / step_s / 1e6:.3f}M tokens/s (mean of {args.steps}: {1e3 * step_s:.1f} ms, the host is busy "
        f"{1e3 * host_s / args.steps:.1f} of them), peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, "
        f"loss {float(loss):.3f}, norm {float(norm):.2f}, load {float(ratio.max()):.2f}",
        flush=True,
    )
    if args.profile:
        profile(trainer, ready)


def profile(trainer: Trainer, batches: list) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        started = time.perf_counter()
        for i in range(3):
            trainer.update(batches[i], 1e-3)
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - started
    rows = [e for e in p.key_averages() if e.self_device_time_total > 0 and e.device_type.name == "CUDA"]
    rows.sort(key=lambda e: -e.self_device_time_total)
    total_us = sum(e.self_device_time_total for e in rows)
    print(f"      3 updates: kernels {total_us / 3e3:.1f} ms each, wall (profiled) {1e3 * wall_s / 3:.1f} ms each")
    for e in rows[:45]:
        print(f"      {e.self_device_time_total / 3e3:8.2f} ms  x{e.count / 3:6.0f}  {e.key[:110]}")


def op_times(args: argparse.Namespace) -> None:
    """Forward and backward of each op alone at the training shape."""
    cfg = preset(args.preset).as_mla()
    T, H, K = args.tokens, cfg.kda.num_heads, cfg.kda.head_dim
    ends = torch.tensor(documents(T, random.Random(3), 200, 4000), dtype=torch.int32, device=GPU)
    padded = torch.cat((ends, ends.new_full((max(0, (args.documents or T // 128) + 1 - len(ends)),), T)))

    def half(*shape: int) -> Tensor:
        return torch.randn(*shape, device=GPU).bfloat16().requires_grad_()

    def timed(name: str, run: Callable[[], Tensor]) -> None:
        try:
            out = run()
            grad = torch.randn_like(out)
            out.backward(grad)
            times = []
            for _ in range(3):
                torch.cuda.synchronize()
                started = time.perf_counter()
                out = run()
                torch.cuda.synchronize()
                middle = time.perf_counter()
                out.backward(grad)
                torch.cuda.synchronize()
                times.append((middle - started, time.perf_counter() - middle))
            forward, backward = min(times)
            print(f"      {name:<34} forward {1e3 * forward:7.2f} ms  backward {1e3 * backward:7.2f} ms", flush=True)
        except Exception as error:
            print(f"      {name:<34} did not run: {error}", flush=True)

    q, k, v, z = (half(1, T, H, K) for _ in range(4))
    b, a_log = half(1, T, H), torch.zeros(H, device=GPU, requires_grad=True)
    dt = torch.full((H, K), -3.0, device=GPU, requires_grad=True)
    for name, bound in (("packed", ends), ("padded", padded)):
        timed(
            f"kda.attend {name}",
            lambda bound=bound: fla.attend(q, k, v, z, b, a_log, dt, lower_bound=-5.0, cu_seqlens=bound)[0],
        )
    x, w = half(1, T, 3 * H * K), torch.randn(3 * H * K, 4, device=GPU, requires_grad=True)
    conv = torch.compile(fla.short_conv, dynamic=False)
    timed("kda.short_conv compiled", lambda: conv(x, w, None, padded)[0])
    m = cfg.mla
    qa, kv = half(1, T, m.num_heads, m.d_qk), half(1, T, m.d_cache)
    wk = torch.randn(m.num_heads, m.d_nope + m.d_v, m.kv_lora, device=GPU, requires_grad=True)
    varlen.set_longest_document(args.row)
    for name, bound in (("packed", ends), ("padded", padded)):
        timed(f"mla.attend {name}", lambda bound=bound: varlen.attend(qa, kv, wk, cu_seqlens=bound))
    e = cfg.moe
    zl = half(T, e.d_latent)
    idx = torch.rand(T, e.num_experts, device=GPU).topk(e.top_k).indices
    wt = torch.rand(T, e.top_k, device=GPU, requires_grad=True)
    w13 = torch.randn(e.num_experts, 2 * e.d_expert, e.d_latent, device=GPU, requires_grad=True)
    w2 = torch.randn(e.num_experts, e.d_latent, e.d_expert, device=GPU, requires_grad=True)
    run = torch.compile(grouped.experts, dynamic=False)
    timed("moe.experts", lambda: grouped.experts(zl, idx, wt, w13, w2))
    timed("moe.experts compiled", lambda: run(zl, idx, wt, w13, w2))
    sources = [half(1, T, cfg.d_model) for _ in range(4)]
    vector = torch.randn(cfg.d_model, device=GPU, requires_grad=True)
    mix = torch.compile(fused.mix, dynamic=False)
    timed("attn_res.mix of 4 compiled", lambda: mix(sources, vector, vector, 1e-5))
    h = half(T, cfg.d_model)
    head = torch.randn(cfg.vocab_size, cfg.d_model, device=GPU, requires_grad=True)
    target, weight = torch.randint(0, cfg.vocab_size, (T,), device=GPU), torch.ones(T, device=GPU)
    timed("head cross-entropy", lambda: head_cross_entropy(h, head, target, weight))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="micro")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--row", type=int, default=8192)
    parser.add_argument("--documents", type=int, help="most documents in a batch (default: tokens / 128)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-ops", action="store_true")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and torch sees none")
    print(f"      {torch.cuda.get_device_name()}, torch {torch.__version__}")
    started = time.perf_counter()
    if not args.skip_checks:
        check_forms()
        print(f"      checks of forms took {time.perf_counter() - started:.0f} s")
        try:
            check_model(args.preset)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"whole model: {error}")
        print(f"      checks took {time.perf_counter() - started:.0f} s")
    if not args.skip_ops:
        op_times(args)
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        try:
            speed(args, Path(folder))
        except Exception as error:
            traceback.print_exc()
            failures.append(f"speed: {error}")
            if not args.eager:  # so that the run tells something all the same
                torch._dynamo.reset()
                args.eager = True
                speed(args, Path(folder))
    print(f"      {time.perf_counter() - started:.0f} s in all")
    if failures:
        sys.exit("FAILED\n" + "\n".join(failures))


if __name__ == "__main__":
    main()
