import numpy as np, traceback
from stof_cupy import attention, masks, RelativeBias
from stof_cupy.ops import reference
rng=np.random.default_rng(0)
def t(name,f):
    try: r=f(); print(name,"->",type(r).__name__, getattr(r,"shape",r if not isinstance(r,tuple) else [x.shape for x in r]))
    except Exception as e: print(name,"->",type(e).__module__,type(e).__name__,str(e)[:300])
q=rng.standard_normal((1,6,37,40)).astype(np.float32);k=rng.standard_normal((1,2,53,40)).astype(np.float32);v=rng.standard_normal((1,2,53,24)).astype(np.float32)
m=masks.BsrMask(rng.random((37,53))<.1)
t("sm90 numpy", lambda: attention(q,k,v,m,select="sm90"))
t("explain numpy", lambda: attention(q,k,v,m,select="sm90",explain=True))
t("bad select", lambda: attention(q,k,v,m,select="sm91"))
t("select None", lambda: attention(q,k,v,m,select=None))
t("select list", lambda: attention(q,k,v,m,select=["sm90"]))
t("mask wrong", lambda: attention(q,k,v,masks.causal(37)))
t("causal no align", lambda: attention(q,k,v,masks.causal(37,53)))
t("heads no divide", lambda: attention(q[:,:5],k,v))
t("dims differ", lambda: attention(q,k[...,:32],v))
t("softcap 0", lambda: attention(q,k,v,softcap=0))
t("softcap neg", lambda: attention(q,k,v,softcap=-3.))
t("softcap nan", lambda: attention(q,k,v,softcap=float("nan")))
t("scale nan", lambda: attention(q,k,v,scale=float("nan")))
t("alibi f64", lambda: attention(q,k,v,alibi=np.ones(6)))
t("alibi shape", lambda: attention(q,k,v,alibi=np.ones(2,np.float32)))
t("sinks shape", lambda: attention(q,k,v,sinks=np.ones(2,np.float32)))
t("kv_lengths float", lambda: attention(q,k,v,kv_lengths=np.array([3.])))
t("kv_lengths list", lambda: attention(q,k,v,kv_lengths=[3]))
t("q list", lambda: attention([1],k,v))
t("3d", lambda: attention(q[0],k[0],v[0]))
t("mix", lambda: attention(q.astype(np.float16),k,v))
t("int mask", lambda: attention(q,k,v,np.ones((37,53),int)))
t("all", lambda: attention(q,k,v,m,softcap=3.,alibi=np.ones(6,np.float32),sinks=np.zeros(6,np.float32),kv_lengths=np.array([20]),return_lse=True))
t("empty", lambda: attention(q,k[:,:,:0],v[:,:,:0],return_lse=True,select="sm90"))
e=masks.BsrMask(np.zeros((37,53),bool)); o,l=attention(q,k,v,e,return_lse=True); print(abs(o).max(), l.max())
o,l=attention(q,k,v,e,return_lse=True,sinks=np.arange(6,dtype=np.float32)); print(abs(o).max(), l[0,:,0])
# choice on Hopper facts
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_model import explain, check_select
import inspect, stof_cupy.ops.attention_model as am
print([n for n in dir(am) if "select" in n.lower() or n in ("explain","choose","estimates")], inspect.signature(explain))
h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30, 2048, 2619000, 5120)
for (sq,sk,dq,dv,h,kv) in ((37,53,40,24,6,2),(1000,1000,128,128,8,2),(8192,8192,192,128,16,16),(4097,4097,72,72,12,12),(1,16384,128,128,32,8),(300,300,100,56,4,4),(300,300,64,60,4,4)):
    for name,mm in (("none",None),("causal",masks.causal(sq,sk,align="bottom-right").tobsr())):
        try: r=explain(Case(Problem("bfloat16",1,h,kv,sq,sk,dq,dv),mm,h100)); print((sq,sk,dq,dv),name,[(x.candidate.kernel,x.candidate.name,round(x.us,1)) for x in r[:2]], "sm90:", [(x.candidate.name,round(x.us,1)) for x in r if x.candidate.kernel=="sm90"][:1])
        except Exception as ex: print((sq,sk,dq,dv),name,type(ex).__name__,ex)
