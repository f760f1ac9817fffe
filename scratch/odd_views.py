# odd strides on the CPU emulation: broadcast heads, reversed, step 2, and argument checks by legal()
import numpy as np
from stof_cupy import masks
from stof_cupy.testing import random_array, rng, poison, assert_close
from stof_cupy.ops import attention_sm90 as s9
from tests.ops.hopper_case import Case, SMALL, compare
from tests.ops.on_hopper import attend
from stof_cupy.ops.attention_sm90 import Config, given
from dataclasses import replace
g=rng(3)
q=random_array(g,(2,4,129,64),"bfloat16"); k1=random_array(g,(1,1,193,64),"bfloat16"); v1=random_array(g,(1,1,193,64),"bfloat16")
def go(name,q,k,v):
    case=Case(np.ascontiguousarray(q),np.ascontiguousarray(k),np.ascontiguousarray(v),masks.BsrMask(g.random((q.shape[2],k.shape[2]))<.3))
    exact=case.oracle(); 
    out=poison((*q.shape[:3],v.shape[3]),q.dtype); lse=poison(q.shape[:3],np.float32)
    a=replace(case.args(out),q=q,k=k,v=v,lse=lse)
    print(name,given(a),end=" ")
    if not given(a).boxes: print("refused"); return
    try: attend(Config(SMALL),a); compare(case,out,lse); print("ok")
    except Exception as e: print(type(e).__name__,str(e)[:200])
go("broadcast kv",q,np.broadcast_to(k1,(2,2,193,64)),np.broadcast_to(v1,(2,2,193,64)))
go("rows reversed",q[:,:,::-1],np.ascontiguousarray(np.broadcast_to(k1,(2,2,193,64))),np.ascontiguousarray(np.broadcast_to(v1,(2,2,193,64))))
go("heads reversed",q[:,::-1],np.ascontiguousarray(np.broadcast_to(k1,(2,2,193,64))),np.ascontiguousarray(np.broadcast_to(v1,(2,2,193,64))))
go("step 2 rows",q[:,:,::2],np.ascontiguousarray(np.broadcast_to(k1,(2,2,193,64))),np.ascontiguousarray(np.broadcast_to(v1,(2,2,193,64))))
go("one repeated row",q,np.broadcast_to(k1[:,:,:1],(2,2,193,64)),np.broadcast_to(v1[:,:,:1],(2,2,193,64)))
packed=random_array(g,(2,129,3,4,64),"bfloat16"); qq,kk,vv=(packed[:,:,i].transpose(0,2,1,3) for i in range(3)); go("qkv packed",qq,kk,vv)
off=random_array(g,(2,4,129,72),"bfloat16"); go("offset 4",off[...,4:68],off[...,4:68],off[...,4:68]); go("offset 8",off[...,8:72],off[...,:64],off[...,8:72])
go("batch 1 strange stride",q[:1],np.ascontiguousarray(np.broadcast_to(k1,(1,2,193,64))),np.ascontiguousarray(np.broadcast_to(v1,(1,2,193,64))))
