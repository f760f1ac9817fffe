import numpy as np, traceback, warnings
import stof_cupy
from stof_cupy import gemm, Epilogue
from stof_cupy.ops.gemm_fold import row_statistics, merged_statistics, fold_norm
from stof_cupy.errors import *
import stof_cupy.errors as E
base=[getattr(E,n) for n in dir(E) if isinstance(getattr(E,n),type) and issubclass(getattr(E,n),Exception)]
def t(name,f):
    try:
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter('always')
            r=f()
        d=getattr(r,'shape',r); 
        print('ok ',name,d,getattr(r,'dtype',''),[str(x.message) for x in w])
    except Exception as e:
        typed=type(e) in base
        print('ERR' if typed else 'RAW',name,type(e).__name__,str(e)[:150])
f=np.float32
t('stats 0 rows',lambda:row_statistics(np.empty((0,4),f),eps=1e-5))
t('stats 0 rows 3d',lambda:row_statistics(np.empty((2,0,4),f),eps=1e-5))
t('stats 1d',lambda:row_statistics(np.ones(4,f),eps=1e-5))
t('stats K0',lambda:row_statistics(np.empty((3,0),f),eps=1e-5))
t('stats eps nan',lambda:row_statistics(np.ones((3,4),f),eps=float('nan')))
t('stats eps 0',lambda:row_statistics(np.ones((3,4),f),eps=0))
t('stats eps str',lambda:row_statistics(np.ones((3,4),f),eps='x'))
t('stats out wrong',lambda:row_statistics(np.ones((3,4),f),eps=1e-5,out=np.empty((3,2),'f8')))
t('stats out noncontig',lambda:row_statistics(np.ones((3,4),f),eps=1e-5,out=np.empty((2,3),f).T))
x=np.ones((3,2),f); t('stats out overlaps x',lambda:row_statistics(x,eps=1e-5,out=x))
ro=np.empty((3,2),f); ro.flags.writeable=False
t('stats out readonly',lambda:row_statistics(np.ones((3,4),f),eps=1e-5,out=ro))
t('stats int',lambda:row_statistics(np.ones((3,4),int),eps=1e-5))
t('stats list',lambda:row_statistics([[1.,2.]],eps=1e-5))
t('stats nan',lambda:row_statistics(np.full((3,4),np.nan,f),eps=1e-5))
t('stats inf',lambda:row_statistics(np.full((3,4),np.inf,f),eps=1e-5))
t('merged 0 rows',lambda:merged_statistics(np.empty((0,1,2),f),4,eps=1e-5))
t('merged cols 0',lambda:merged_statistics(np.empty((2,0,2),f),0,eps=1e-5))
t('merged cols float',lambda:merged_statistics(np.empty((2,1,2),f),4.0,eps=1e-5))
t('merged cols -5',lambda:merged_statistics(np.empty((2,0,2),f),-5,eps=1e-5))
t('merged list',lambda:merged_statistics([[[2,2]]],2,eps=1e-5))
w=np.ones((4,3),f)
t('fold 1d w',lambda:fold_norm(np.ones(3,f),np.ones(3,f)))
t('fold bad weight',lambda:fold_norm(w,np.ones(4,f)))
t('fold list',lambda:fold_norm([[1,2]],np.ones(2,f)))
t('fold int',lambda:fold_norm(np.ones((4,3),int),np.full(3,.5,f)).weight)
t('fold f16 overflow',lambda:fold_norm(np.full((4,3),300,np.float16),np.full(3,300,np.float16)).weight)
t('fold 0',lambda:fold_norm(np.ones((0,3),f),np.ones(3,f)).weight)
a,b=np.ones((2,3),f),np.ones((3,4),f)
for nm,args,kw in [
 ('K0',(np.ones((2,0),f),np.ones((0,4),f)),{}),
 ('K0 bias gelu',(np.ones((2,0),f),np.ones((0,4),f)),dict(epilogue=Epilogue(bias=np.ones(4,f),activation='gelu'))),
 ('M0',(np.ones((0,3),f),b),{}),('N0',(a,np.ones((3,0),f)),{}),
 ('N0 gated',(a,np.ones((3,0),f)),dict(epilogue=Epilogue(activation='silu',gated=True))),
 ('odd gated',(a,np.ones((3,3),f)),dict(epilogue=Epilogue(activation='silu',gated=True))),
 ('lists',([[1.]],[[1.]]),{}),('int',(np.ones((2,3),int),np.ones((3,4),int)),{}),
 ('complex',(a.astype(complex),b.astype(complex)),{}),('bool',(a>0,b>0),{}),
 ('1d a',(np.ones(3,f),b),{}),('1d b',(a,np.ones(3,f)),{}),('3d b',(a,np.ones((2,3,4),f)),{}),
 ('mixed',(a,b.astype('f8')),{}),('f16',(a.astype('f2'),b.astype('f2')),{}),
 ('>f4',(a.astype('>f4'),b.astype('>f4')),{}),
 ('out shape',(a,b),dict(out=np.empty((2,5),f))),('out dtype',(a,b),dict(out=np.empty((2,4),'f8'))),
 ('out=tuple',(a,b),dict(out=(1,))),('epilogue str',(a,b),dict(epilogue='gelu')),
 ('neg strides',(a[::-1,::-1],b[::-1,::-1]),{}),
 ('broadcast a',(np.broadcast_to(f(1),(2,3)),b),{}),
 ('matrix',(np.matrix(a),np.matrix(b)),{}),
 ('masked',(np.ma.masked_array(a,a>0),b),{}),
]: t(nm,lambda:gemm(*args,**kw))
sq=np.arange(9,dtype=f).reshape(3,3)
t('out is a',lambda:gemm(sq,sq.copy(),out=sq)); t('out overlap T',lambda:gemm(sq.T,sq.copy(),out=sq))
r=np.ones((2,4),f)
t('out is residual',lambda:gemm(a,b,epilogue=Epilogue(residual=r),out=r))
big=np.ones((3,4),f)
t('out shifted residual',lambda:gemm(a,b,epilogue=Epilogue(residual=big[:2]),out=big[1:]))
ro=np.empty((2,4),f); ro.flags.writeable=False
t('out ro',lambda:gemm(a,b,out=ro))
t('out bcast',lambda:gemm(a,b,out=np.broadcast_to(np.empty((1,4),f),(2,4))))
for k,v in [('activation','nope'),('activation',3),('scale','x'),('scale',np.nan),('scale',np.ones(2)),('bias',np.ones(5,f)),('bias',1.0),('residual',np.ones((4,2),f)),('gated',3),('heads',3),('heads',0),('heads',-1),('heads',2.0),('heads',True)]:
    t(f'{k}={v!r:.20}',lambda:gemm(a,b,epilogue=Epilogue(**{k:v})))
from stof_cupy.ops.gemm_norm import gemm_layer_norm
import inspect
print(inspect.signature(gemm_layer_norm))
from stof_cupy.ops.gemm_gemm import gemm_gemm
print(inspect.signature(gemm_gemm))
