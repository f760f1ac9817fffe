"""FlexAttention with score_mods beside ours' terms (us): same shapes as rest5.py terms, bf16. GPU."""
import sys, torch
sys.path[:0] = ["benchmarks"]
from torch.nn.attention.flex_attention import flex_attention, create_block_mask
def t(run, n=12):
    for _ in range(3): run()
    torch.cuda.synchronize(); a = []
    for _ in range(n):
        s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        s.record(); run(); e.record(); torch.cuda.synchronize(); a.append(s.elapsed_time(e) * 1e3)
    return sorted(a)[n // 2]
flex = torch.compile(flex_attention, dynamic=False)
for (b, h, s, d) in ((1, 32, 8192, 128), (16, 12, 2048, 64)):
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    slopes = 2.0 ** (-8 * torch.arange(1, h + 1, device="cuda") / h)
    bias = torch.randn(s, s, device="cuda", dtype=torch.bfloat16)
    mods = {"none": None, "softcap": lambda x, B, H, i, j: 30 * torch.tanh(x / 30), "alibi": lambda x, B, H, i, j: x - slopes[H] * (i - j).abs(), "bias array": lambda x, B, H, i, j: x + bias[i, j]}
    for name, mask in (("full", None), ("sliding", create_block_mask(lambda B, H, i, j: (i - j).abs() <= 256, None, None, s, s))):
        row = {n: t(lambda: flex(q, k, v, score_mod=m, block_mask=mask)) for n, m in mods.items()}
        print(f"flex {(b,h,s,d)} {name}: " + ", ".join(f"{n} {x:.1f}" for n, x in row.items()), flush=True)
