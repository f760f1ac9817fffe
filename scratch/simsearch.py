import sys, os, zlib; sys.path[:0]=[os.getcwd(),"benchmarks"]
import numpy as np
import engine_stacks as st
from dataclasses import replace
from stof_cupy.fusion import structured
from stof_cupy.fusion.baselines import exhaustive, greedy_rules, random_search
from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import machine_of
from stof_cupy.fusion.ledger import Budget, Ledger
from stof_cupy.fusion.pieces import pieces
from stof_cupy.fusion.search import two_stage
from stof_cupy.fusion.tune import MODES
from tests.runtime.cuda_path import H100
class S:
    def __init__(s, sp, seed, sigma):
        s.sp=sp; s.kinds, s.key, s.settings, s.predicted = sp.kinds, sp.key, sp.settings, sp.predicted; s._seg=sp.segments(); s.seed=seed; s.sigma=sigma
    def segments(s): return s._seg
    def measure(s, span, setting):
        g=np.random.default_rng(zlib.crc32(f"{s.seed}{s.key(span)}{setting}".encode()))
        return s.predicted(span, setting)*float(np.exp(s.sigma*g.standard_normal()))
for name in sys.argv[1:] or ("bert-base","llama-1b"):
  for b,q in ((1,128),(8,512),(16,2048)):
    stack=replace(st.STACKS[name],layers=2)
    g=structured(st.graph(stack, st.weights(stack)))
    ch=Chain(g); ps=[p for p in pieces(ch) if p.copies>1] or pieces(ch)
    sp=PieceSpace(ch, ps[0], Site("cuda","bfloat16",None,machine_of(H100),{"batch":b,"seq":q}))
    n=sum(len(sp.settings(s)) for s in {sp.key(x):x for x in sp.segments()}.values())
    for sigma in (0.1,0.3):
      row=[]
      for mode,bud in (("fast",replace(MODES["fast"],seconds=1e9)),("full",replace(MODES["full"],seconds=1e9))):
        L,T=[],[]
        for seed in range(10):
            x=S(sp,seed,sigma); best=exhaustive(Ledger(x)); o=two_stage(Ledger(x,bud), sp.rules(), seed=seed); L.append(o.seconds/best.seconds-1); T.append(o.timed)
        row.append(f"{mode}: loss {np.mean(L):.1%} max {max(L):.1%} timed {np.mean(T):.0f}")
      r=[greedy_rules(Ledger(S(sp,seed,sigma)),sp.rules()).seconds/exhaustive(Ledger(S(sp,seed,sigma))).seconds-1 for seed in range(10)]
      print(name,b,q,"sigma",sigma,"settings",n,"segments",len(sp.segments()),"rules",[sp.names(s) for s in sp.rules()] if sigma==.1 and b==1 else "", "|", " | ".join(row), f"| rules loss {np.mean(r):.1%}", flush=True)
