import cupy as cp, torch, time, numpy as np
def timed(f, n=10):
    f(); f(); a,b=cp.cuda.Event(),cp.cuda.Event(); ts=[]
    for _ in range(n):
        a.record(); f(); b.record(); b.synchronize(); ts.append(cp.cuda.get_elapsed_time(a,b))
    return np.median(ts)
k=cp.ElementwiseKernel("complex128 x","complex128 y","y = x","c16")
raw=cp.RawKernel(r'''extern "C" __global__ void c(const uint4* x, uint4* y, long n){ long i=(long)blockIdx.x*1024+threadIdx.x; uint4 v[4];
#pragma unroll
for(int j=0;j<4;++j) if(i+j*256<n) v[j]=x[i+j*256];
#pragma unroll
for(int j=0;j<4;++j) if(i+j*256<n) y[i+j*256]=v[j]; }''','c')
read=cp.RawKernel(r'''extern "C" __global__ void r(const uint4* x, uint4* y, long n){ long i=(long)blockIdx.x*2048+threadIdx.x; uint4 v[8]; unsigned s=0;
#pragma unroll
for(int j=0;j<8;++j) if(i+j*256<n) v[j]=x[i+j*256];
#pragma unroll
for(int j=0;j<8;++j) s+=v[j].x^v[j].y^v[j].z^v[j].w; if(s==0x12345) y[0]=v[0]; }''','r')
for mib in (256,1024,4096):
    n=mib<<20
    for what in ("random","zeros"):
        x=cp.random.default_rng(0).integers(0,2**63,n//8,dtype=cp.int64) if what=="random" else cp.zeros(n//8,cp.int64)
        y=cp.zeros_like(x); xc,yc=x.view(cp.complex128),y.view(cp.complex128); tx,ty=torch.as_tensor(x,device="cuda"),torch.as_tensor(y,device="cuda")
        N=n//16
        row={"torch":lambda:ty.copy_(tx),"memcpy":lambda:y.data.copy_from_device_async(x.data,n),"kernel":lambda:k(xc,yc),"raw4":lambda:raw((-(-N//1024),),(256,),(x,y,np.int64(N)))}
        torch.cuda.synchronize(); 
        with torch.cuda.stream(torch.cuda.ExternalStream(cp.cuda.get_current_stream().ptr)):
            out={w:2*n/timed(f)/1e6 for w,f in row.items()}
        out["read"]=n/timed(lambda:read((-(-N//2048),),(256,),(x,y,np.int64(N))))/1e6
        print(mib,what,{w:round(v) for w,v in out.items()},flush=True)
        del x,y,xc,yc,tx,ty
