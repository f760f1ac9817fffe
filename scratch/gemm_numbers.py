import sys; sys.path.insert(0,'benchmarks')
from pathlib import Path
import summary_gemm as s, numpy as np
cells,copy=s.read([Path('benchmarks/results/gemm_h200_2026-11-29.json')])
by={(c.kind,c.shape):c for c in cells}
g=lambda r: float(np.exp(np.mean(np.log(r))))
def show(t,sel,alone=False):
    r=[(c.ratio(alone),c) for c in cells if sel(c)]
    r=[x for x in r if x[0]]
    mn=min(r,key=lambda x:x[0]); mx=max(r,key=lambda x:x[0])
    print(t,len(r),'won',sum(x[0]>=1 for x in r),'geo %.4f min %.3f %s max %.3f %s'%(g([x[0] for x in r]),mn[0],mn[1].shape,mx[0],mx[1].shape))
show('plain',lambda c:c.kind=='plain')
show('plain no vendor choice M>=512 alone',lambda c:c.kind=='plain' and c.shape[0]>=512,True)
for k in ('bias_gelu','swiglu','layer_norm','fold'):
    show(k,lambda c:c.kind==k and c.shape[0]>=512)
show('bg alone',lambda c:c.kind=='bias_gelu' and c.shape[0]>=512,True)
show('bg wide',lambda c:c.kind=='bias_gelu' and c.shape[0]==32768 and c.shape[2]<=1024)
show('fold vs eager only 512',lambda c:c.kind=='fold' and c.shape[0]==512)
rg=[c.regret for c in cells if c.regret is not None]
print('regret',len(rg),np.mean(rg),max(rg))
for n,k in ((2304,768),(768,768),(3072,768),(768,3072),(16384,2048),(2048,8192)):
    print(n,k,[('%.1f %s'%(by['plain',(m,n,k)].times['ours'],by['plain',(m,n,k)].choice)) for m in (16,512,4096,32768)])
for kind,n,k in (('bias_gelu',3072,768),('bias_gelu',1728,576),('layer_norm',768,768),('layer_norm',768,3072),('layer_norm',1728,576)):
    print(kind,n,k,[('%.1f %s'%(by[kind,(m,n,k)].times['ours'],by[kind,(m,n,k)].choice)) for m in (512,4096,32768)])
for m in (1,16):
    for n,k in ((16384,2048),(2048,8192),(3072,2048)):
        c=by['plain',(m,n,k)]; print(m,n,k,'%.0f %.3f'%(c.bandwidth,c.bandwidth/4070))
# ours vs apart for the own kernels
for kind in('layer_norm','fold'):
    show2=[(c.times['apart']/c.times['ours'],c.shape,c.choice) for c in cells if c.kind==kind]
    print(kind,'apart/ours geo %.3f'%g([x[0] for x in show2]),'slower than apart by >2%:',[(round(x[0],2),x[1]) for x in show2 if x[0]<.98])
print('peers', {k:sum(1 for c in cells if c.kind==k and 'compile' in c.times) for k in ('plain','bias_gelu','swiglu','layer_norm','fold')})
