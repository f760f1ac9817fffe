# what select="sm90" says on Hopper facts for cases it refuses / takes
import numpy as np
from stof_cupy import masks
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case, Given
from stof_cupy.ops.attention_fields import ScoreKind
from stof_cupy.ops.attention_model import choose
import inspect
pass
h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30, 2048, 2619000, 5120)
a100 = DeviceFacts("NVIDIA A100", "80", (8, 0), 108, 166912, 167936, 40 << 20, 1410000, 80 << 30, 2048, 1593000, 5120)
def t(name, p, m=None, facts=h100, **kw):
    try:
        c=choose(Case(p,m,facts,**kw), None, select="sm90"); print(name,"->",c.kernel,c.name)
    except Exception as e: print(name,"->",type(e).__name__,str(e)[:260])
P=lambda sq=300,sk=300,dq=64,dv=64,h=4,kv=4,b=1: Problem("bfloat16",b,h,kv,sq,sk,dq,dv)
t("plain",P()); t("a100",P(),facts=a100); t("dv 60",P(dv=60)); t("dq 36 unaligned",P(dq=36),given=Given(False,False,False))
t("neg scale",P(),given=Given(True,False,True)); t("D300",P(dq=300,dv=300)); t("empty",P(sk=0)); t("Dv 256 Dqk 64",P(dv=256)); t("Dqk 256 Dv 64",P(dq=256)); t("odd",P(1,1,8,8,7,1))
for dims in ((64,64),(96,96),(128,128),(192,192),(192,128),(256,256),(64,256),(256,64)):
    for kind in (dict(softcap=True),dict(alibi=True),dict(distances=True),dict(bias="float16"),dict(bias="float32",alibi=True),dict(softcap=True,bias="float16",alibi=True)):
        t(f"{dims} {kind}",P(dq=dims[0],dv=dims[1]),masks.causal(300).tobsr(),scores=ScoreKind(**kind))
t("gqa decode",P(1,16384,128,128,32,8)); t("128 heads GQA 5",P(97,131,128,128,15,3),masks.causal(97,131,align="bottom-right").tobsr())
