"""Counted statistics against made lists, masks of odd shapes. PYTHONPATH=$PWD python scratch/hostile_packed.py (30 s)"""
import numpy as np, sys, time
from stof_cupy.masks import BsrMask, MaskStack
g=np.random.default_rng(int(sys.argv[1]) if len(sys.argv)>1 else 0)
n=bad=0
t0=time.time()
while time.time()-t0<45:
    sq,sk=(int(g.choice([1,7,8,9,63,64,65,100,120,127,128,129,130,191,192,193,200,256,257,300,385])) for _ in '  ')
    def dense():
        k=g.integers(6)
        if k==0: return g.random((sq,sk))<g.choice([0,.001,.01,.1,.9,1])
        if k==1: return np.repeat(g.random((1,sk))<g.choice([.02,.3,.9]),sq,0)
        if k==2: return np.kron(g.random((-(-sq//64),-(-sk//64)))<.5,np.ones((64,64)))[:sq,:sk]>0
        if k==3: return np.kron(g.random((-(-sq//8),-(-sk//8)))<g.choice([.1,.5,.95]),np.ones((8,8)))[:sq,:sk]>0
        if k==4: return np.tri(sq,sk,int(g.integers(-sk,sk)))>0
        return np.kron(g.random((-(-sq//64),-(-sk//64)))<.7,np.ones((64,64)))[:sq,:sk]>(g.random((sq,sk))<.002)
    lead=[(),(),(3,),(2,1),(2,3)][g.integers(5)]
    if lead:
        d=np.stack([dense() for _ in range(2)])[g.integers(0,2,lead)]
        m=MaskStack.from_dense(d)
    else:
        d=dense(); m=BsrMask(d)
    for tile in [(64,64),(128,64),(128,128),(192,64),(192,128),(64,128),(128,112),(64,80),(192,8),(64,24),(256,248)]:
        for packed in (False,True):
            n+=1
            s=m.tile_stats(tile,packed); l=m.tile_lengths(tile,packed)
            sch=m.schedule(tile,layout="accumulator",packed=packed)
            ok = np.array_equal(l,sch.lengths) and s.visited==sch.stats.visited and s.kept==sch.stats.kept and abs(s.waste-sch.stats.waste)<1e-12 and s.longest==sch.stats.longest
            okpart = s.part==sch.stats.part if not packed else s.part>=sch.stats.part
            if not (ok and okpart):
                bad+=1
                if bad<10: print("BAD",sq,sk,lead,tile,packed,s,sch.stats,l,sch.lengths)
print(n,bad)
