"""The network a second time: a plain numpy transcription of the published maths, one token and one head at a time.

Written from the technical report's equations and the released modeling code, not from `longstep`; it shares with it the
names of the weights and nothing else. Slow on purpose. Everything is float64.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, w, eps):
    return w * x / np.sqrt(np.mean(x * x) + eps)


def situ(g, u):
    return 4 * np.tanh(g / 4) * sigmoid(g) * 25 * np.tanh(u / 25)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def mix(sources, w_norm, w_query):
    scores = [np.sum(w_norm * w_query * v / np.sqrt(np.mean(v * v) + 1e-5)) for v in sources]
    return sum(a * v for a, v in zip(softmax(np.array(scores)), sources, strict=True))


def kda(x_TD, w, num_heads, head_dim):
    T = len(x_TD)
    raw = {n: x_TD @ w[f"{n}_proj.weight"].T for n in "qkv"}
    out = np.zeros((T, len(w["o_proj.weight"])))
    state = np.zeros((num_heads, head_dim, head_dim))
    for t in range(T):
        conv = {}
        for n in "qkv":
            total = np.zeros(num_heads * head_dim)
            for i in range(4):
                if t - 3 + i >= 0:
                    total += w[f"{n}_conv"][:, i] * raw[n][t - 3 + i]
            conv[n] = (total * sigmoid(total)).reshape(num_heads, head_dim)
        z = (w["f_b_proj.weight"] @ (w["f_a_proj.weight"] @ x_TD[t]) + w["dt_bias"]).reshape(num_heads, head_dim)
        beta = sigmoid(w["b_proj.weight"] @ x_TD[t])
        gate = sigmoid(w["g_proj.weight"] @ x_TD[t]).reshape(num_heads, head_dim)
        heads = []
        for h in range(num_heads):
            q = conv["q"][h] / np.sqrt(np.sum(conv["q"][h] ** 2) + 1e-6) / np.sqrt(head_dim)
            k = conv["k"][h] / np.sqrt(np.sum(conv["k"][h] ** 2) + 1e-6)
            v = conv["v"][h]
            decay = np.exp(-5 * sigmoid(np.exp(w["a_log"][h]) * z[h]))
            S = np.diag(decay) @ state[h]
            S = S + beta[h] * np.outer(k, v - S.T @ k)
            state[h] = S
            heads.append(rms(S.T @ q, w["o_norm"], 1e-5) * gate[h])
        out[t] = w["o_proj.weight"] @ np.concatenate(heads)
    return out


def mla(x_TD, w, num_heads, d_nope, d_v, kv_lora, dsa):
    T = len(x_TD)
    c_q = [rms(w["q_a_proj.weight"] @ x, w["q_a_norm.weight"], 1e-6) for x in x_TD]
    cr = x_TD @ w["kv_a_proj.weight"].T
    c = [rms(row[:kv_lora], w["kv_a_norm.weight"], 1e-6) for row in cr]
    r = cr[:, kv_lora:]
    up = w["kv_b_proj.weight"].reshape(num_heads, d_nope + d_v, kv_lora)
    out = np.zeros((T, len(w["o_proj.weight"])))
    for t in range(T):
        seen = list(range(t + 1)) if dsa is None else select(t, x_TD, c_q, w, dsa)
        q = (w["q_b_proj.weight"] @ c_q[t]).reshape(num_heads, -1)
        heads = []
        for h in range(num_heads):
            keys = np.array([np.concatenate((up[h, :d_nope] @ c[s], r[s])) for s in seen])
            values = np.array([up[h, d_nope:] @ c[s] for s in seen])
            heads.append(softmax(keys @ q[h] / np.sqrt(len(q[h]))) @ values)
        out[t] = w["o_proj.weight"] @ (np.concatenate(heads) * sigmoid(w["g_proj.weight"] @ x_TD[t]))
    return out


def select(t, x_TD, c_q, w, dsa):
    """The positions of the highest index scores; of equals the earlier."""
    q = (w["indexer.wq_b.weight"] @ c_q[t]).reshape(dsa.num_heads, dsa.head_dim)
    weight = w["indexer.weights_proj.weight"] @ x_TD[t]
    scores = []
    for s in range(t + 1):
        k = w["indexer.wk.weight"] @ x_TD[s]
        k = (k - k.mean()) / np.sqrt(k.var() + 1e-5) * w["indexer.k_norm.weight"] + w["indexer.k_norm.bias"]
        scores.append(sum(weight[h] * max(0.0, q[h] @ k) for h in range(dsa.num_heads)))
    return sorted(sorted(range(t + 1), key=lambda s: (-scores[s], s))[: dsa.top_k])


def mlp(x, w, prefix=""):
    g, u = np.split(w[f"{prefix}gate_up_proj.weight"] @ x, 2)
    return w[f"{prefix}down_proj.weight"] @ situ(g, u)


def moe(x, w, top_k):
    s = sigmoid(w["router"] @ x)
    chosen = np.argsort(-(s + w["balance_bias_E"]), kind="stable")[:top_k]
    z = w["latent_down_proj.weight"] @ x
    total = 0
    for e in chosen:
        g, u = np.split(w["w13_EFL"][e] @ z, 2)
        total = total + s[e] / s[chosen].sum() * (w["w2_ELF"][e] @ situ(g, u))
    y = w["latent_up_proj.weight"] @ rms(total, w["latent_norm.weight"], 1e-5)
    return y + mlp(x, w, "shared_experts.")


def under(weights, prefix):
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def logits(cfg, weights, tokens):
    """[T, vocab] for one sequence of token ids; `weights` maps names to float64 arrays."""
    p = [weights["embed.weight"][t] for t in tokens]
    T, blocks = len(tokens), []
    for layer in range(cfg.num_layers):
        w = under(weights, f"layers.{layer}.")
        h = [
            mix([b[t] for b in blocks] + [p[t]], w["attn_mix.norm"], w["attn_mix.query"]) if blocks else p[t]
            for t in range(T)
        ]
        if layer % cfg.attn_res_block == 0:
            blocks.append(p)
            p = None
        x = np.array([rms(row, w["attn_norm.weight"], 1e-5) for row in h])
        if layer + 1 in cfg.attention_layers:
            m = cfg.mla
            a = mla(x, under(w, "attn."), m.num_heads, m.d_nope, m.d_v, m.kv_lora, cfg.dsa)
        else:
            a = kda(x, under(w, "attn."), cfg.kda.num_heads, cfg.kda.head_dim)
        p = [a[t] if p is None else p[t] + a[t] for t in range(T)]
        f = under(w, "ffn.")
        for t in range(T):
            h = mix([b[t] for b in blocks] + [p[t]], w["ffn_mix.norm"], w["ffn_mix.query"])
            x = rms(h, w["ffn_norm.weight"], 1e-5)
            p[t] = p[t] + (mlp(x, f) if layer < cfg.num_dense_layers else moe(x, f, cfg.moe.top_k))
    out = []
    for t in range(T):
        h = mix([b[t] for b in blocks] + [p[t]], weights["output_mix.norm"], weights["output_mix.query"])
        out.append(weights["head.weight"] @ rms(h, weights["norm.weight"], 1e-5))
    return np.array(out)
