import numpy as np, warnings
import stof_cupy.errors as E
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_norm import gemm_layer_norm, gemm_rms_norm
from stof_cupy.ops.gemm_gemm import gemm_gemm
base=[getattr(E,n) for n in dir(E) if isinstance(getattr(E,n),type) and issubclass(getattr(E,n),Exception)]
def t(name,f):
    try:
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter('always'); r=f()
        print('ok ',name,getattr(r,'shape',r),getattr(r,'dtype',''),[str(x.message) for x in w])
    except Exception as e: print('ERR' if type(e) in base else 'RAW',name,type(e).__name__,str(e)[:140])
f=np.float32; a,b=np.ones((2,3),f),np.ones((3,4),f); w,s=np.ones(4,f),np.zeros(4,f)
g=lambda *x,eps=1e-5,**k: gemm_layer_norm(*x,eps=eps,**k)
t('ln',lambda:g(a,b,w,s)); t('ln None',lambda:g(a,b,None,s)); t('ln bias None',lambda:g(a,b,w,None))
t('ln M0',lambda:g(np.ones((0,3),f),b,w,s)); t('ln K0',lambda:g(np.ones((2,0),f),np.ones((0,4),f),w,s)); t('ln N0',lambda:g(a,np.ones((3,0),f),w[:0],s[:0]))
t('ln eps',lambda:g(a,b,w,s,eps=None)); t('ln eps neg',lambda:g(a,b,w,s,eps=-1))
t('ln w dtype',lambda:g(a,b,w.astype('f8'),s)); t('ln w shape',lambda:g(a,b,w[:3],s)); t('ln w strided',lambda:g(a,b,np.ones(8,f)[::2],s))
o=np.empty((2,4),f); t('ln out is w mem',lambda:g(a,b,o[0],s,out=o)); t('ln gated',lambda:g(a,np.ones((3,8),f),w,s,epilogue=Epilogue(activation='silu',gated=True)))
t('ln heads',lambda:g(a[None],b,w,s,epilogue=Epilogue(heads=2))); t('ln out f',lambda:g(a,b,w,s,out=np.empty((2,4),f,order='F')))
t('ln stat',lambda:g(a,b,w,s,epilogue=Epilogue(statistics=np.empty((2,1,2),f))))
r=np.ones((2,4),f); t('ln out=residual',lambda:g(a,b,w,s,epilogue=Epilogue(residual=r),out=r))
t('rms',lambda:gemm_rms_norm(a,b,w,eps=1e-5)); t('ln epi str',lambda:g(a,b,w,s,epilogue=3))
d=np.ones((4,5),f)
t('gg',lambda:gemm_gemm(a,b,d)); t('gg d bad',lambda:gemm_gemm(a,b,d.T)); t('gg d None',lambda:gemm_gemm(a,b,None)); t('gg d list',lambda:gemm_gemm(a,b,[[1]]))
t('gg d dtype',lambda:gemm_gemm(a,b,d.astype('f8'))); t('gg M0',lambda:gemm_gemm(a[:0],b,d)); t('gg H0',lambda:gemm_gemm(a,b[:,:0],d[:0])); t('gg N0',lambda:gemm_gemm(a,b,d[:,:0])); t('gg K0',lambda:gemm_gemm(a[:,:0],b[:0],d))
t('gg between str',lambda:gemm_gemm(a,b,d,between='x')); t('gg between heads',lambda:gemm_gemm(a[None],b,d,between=Epilogue(heads=2)))
big=np.ones((4,4),f); sq=np.ones((4,4),f)
t('gg out=d',lambda:gemm_gemm(big,sq,d[:, :4].copy() if 0 else sq.copy(),out=big)); 
dd=np.ones((4,4),f); t('gg out is d',lambda:gemm_gemm(big,sq,dd,out=dd)); bb=np.ones((4,4),f); t('gg out is between residual',lambda:gemm_gemm(big,sq,dd,between=Epilogue(residual=bb),out=bb))
t('gg out is bias of between',lambda:gemm_gemm(big,sq,dd,between=Epilogue(bias=bb[0]),out=bb))
st=np.empty((4,1,2),f)
outm=np.empty((4,4),f)
t('gg between stats in out',lambda:gemm_gemm(big,sq,dd,between=Epilogue(statistics=outm.reshape(-1)[:8].reshape(4,1,2)),out=outm))
t('nan',lambda:gemm_gemm(np.full((2,3),np.nan,f),b,d).sum()); t('gated odd',lambda:gemm_gemm(a,np.ones((3,5),f),d,between=Epilogue(activation='silu',gated=True)))
from stof_cupy.ops.gemm_timing import measure, to_time
from stof_cupy.ops.gemm_args import Problem
