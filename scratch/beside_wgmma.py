"""How fast do other instructions issue beside wgmma, and how much slower does it get?   One GPU, 10 s.

    PYTHONPATH=$PWD python3 scratch/beside_wgmma.py [--compile]

A CTA an SM: warpgroup 0 multiplies 64x192x16 from shared memory (random bf16), 1 repeats one instruction (32 independent chains) as long as 0 runs. Clocks of the SM, so that the
clock's rate plays no part. "alone": instructions a clock and scheduler without wgmma; "beside": with it; "wgmma": clocks of a product (96 are the least) for 96 alone.
"""
import sys
from stof_cupy.jit import nvrtc
from stof_cupy.jit.source import cuda_root
from stof_cupy.jit.wgmma import wgmma

OPS = {  # of x[i] (chain), a and b (registers that do not change)
    "fma x*a+b": 'asm volatile("fma.rn.ftz.f32 %0, %0, %1, %2;" : "+f"(x[i]) : "f"(a), "f"(b));',
    "fma a*b+x": 'asm volatile("fma.rn.ftz.f32 %0, %1, %2, %0;" : "+f"(x[i]) : "f"(a), "f"(b));',
    "fma x*y+z": 'asm volatile("fma.rn.ftz.f32 %0, %0, %1, %2;" : "+f"(x[i]) : "f"(y[i % 8]), "f"(y[(i + 3) % 8]));',
    "fma x*imm+b": 'asm volatile("fma.rn.ftz.f32 %0, %0, 0f3F7FFFFF, %1;" : "+f"(x[i]) : "f"(b));',
    "fma x*a+imm": 'asm volatile("fma.rn.ftz.f32 %0, %0, %1, 0f3A83126F;" : "+f"(x[i]) : "f"(a));',
    "add x+a": 'asm volatile("add.rn.ftz.f32 %0, %0, %1;" : "+f"(x[i]) : "f"(a));',
    "mul x*imm": 'asm volatile("mul.rn.ftz.f32 %0, %0, 0f3F7FFFFF;" : "+f"(x[i]));',
    "mul x*x": 'asm volatile("mul.rn.ftz.f32 %0, %0, %0;" : "+f"(x[i]));',
    "max |x|": 'asm volatile("max.f32 %0, %0, %1;" : "+f"(x[i]) : "f"(a));',
    "ex2": 'asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));',
    "rcp": 'asm volatile("rcp.approx.ftz.f32 %0, %0;" : "+f"(x[i]));',
    "hfma2": 'asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(h[i]) : "r"(h[32]), "r"(h[33]));',
    "lop": 'asm volatile("xor.b32 %0, %0, %1;" : "+r"(h[i]) : "r"(h[32]));',
    "gelu erf": 'x[i] = stof::activation::Gelu::apply(x[i]) + b; asm volatile("" : "+f"(x[i]));',
    "gelu tanh": 'x[i] = stof::activation::GeluTanh::apply(x[i]) + b; asm volatile("" : "+f"(x[i]));',
}
SOURCE = wgmma("bf16", (192,)).join(['#include "types.cuh"\n#include "ptx/wgmma.cuh"\n#include "ptx/operand.cuh"\n#include "ptx/shared.cuh"\n#include "activation.cuh"\n', r'''
using namespace stof;
extern "C" __global__ void __launch_bounds__(256, 1) bench(const u32* data, long long* out, float* sink, int mode, int rounds, float a, float b) {
  extern __shared__ __align__(1024) u32 memory[];
  __shared__ volatile int done;
  if (threadIdx.x == 0) done = 0;
  for (int i = threadIdx.x; i < 65536 / 4; i += 256) memory[i] = data[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const u32 at = (ptx::shared_address(reinterpret_cast<char*>(memory)) + 1023) / 1024 * 1024;
  const long long begin = clock64();
  if (threadIdx.x < 128) {
    if (mode & 1) {
      float d[96];
      for (int i = 0; i < 96; ++i) d[i] = 0.f;
      const u64 oa = ptx::operand_k_major(at), ob = ptx::operand_k_major(at + 16384);
#pragma unroll 1
      for (int r = 0; r < rounds; ++r) {
        ptx::pin(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::Wgmma<bf16, 192>::template product<0, 0>(d, oa + 2 * i, ob + 2 * i);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
      }
      ptx::wgmma_wait<0>();
      ptx::pin(d);
      if (threadIdx.x == 0) out[2 * blockIdx.x] = clock64() - begin;
      float s = 0.f;
      for (int i = 0; i < 96; ++i) s += d[i];
      sink[blockIdx.x * 256 + threadIdx.x] = s;
    }
    if (threadIdx.x == 0) done = 1;
  } else if (mode & 2) {
    float x[32], y[8];
    u32 h[34];
    for (int i = 0; i < 32; ++i) x[i] = 0.5f + 0.01f * (threadIdx.x + i);
    for (int i = 0; i < 8; ++i) y[i] = a + 0.001f * i;
    for (int i = 0; i < 34; ++i) h[i] = 0x3c003800 + i * threadIdx.x;
    long long count = 0;
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int i = 0; i < 32; ++i) { OPERATION }
      count += 64;
      if (mode == 3 ? done != 0 : count >= 64 * rounds) break;
    }
    if (threadIdx.x == 128) out[2 * blockIdx.x + 1] = count * 1000000 / (clock64() - begin);
    float s = 0.f;
    for (int i = 0; i < 32; ++i) s += x[i] + h[i];
    for (int i = 0; i < 8; ++i) s += y[i];
    sink[blockIdx.x * 256 + threadIdx.x] = s;
  }
}
'''])


def main():
    library = nvrtc.load()
    def image(op):
        return library.compile(SOURCE.replace("OPERATION", OPS[op]), "bench.cu", ("-arch=sm_90a", "-std=c++17", f"-I{cuda_root()}"))[0]
    if "--compile" in sys.argv:
        for op in OPS:
            print(op, len(image(op)))
        return
    import cupy, numpy
    data = cupy.asarray(numpy.random.default_rng(0).integers(0x3f00, 0x3fff, 32768).astype(numpy.uint16)).view(numpy.uint32)
    out, sink = cupy.zeros(264, numpy.int64), cupy.zeros(132 * 256, numpy.float32)
    for op in OPS:
        module = cupy.cuda.function.Module(); module.load(image(op))
        f = module.get_function("bench")
        got = {}
        for mode in (1, 2, 3):
            out.fill(0)
            for _ in range(2):
                launch(f, (data, out, sink, mode, 2000, 0.999, 0.001))
                cupy.cuda.Device().synchronize()
            v = numpy.median(out.get().reshape(132, 2), axis=0)
            got[mode] = v[0] / 8000, v[1] / 1e6
        print(f"{op:14} alone {got[2][1]:.3f} beside {got[3][1]:.3f}   wgmma alone {got[1][0]:.1f} beside {got[3][0]:.1f}", flush=True)


def launch(f, args):
    import numpy
    data, out, sink, mode, rounds, a, b = args
    driver_set(f)
    f((132, 1, 1), (256, 1, 1), (data, out, sink, numpy.int32(mode), numpy.int32(rounds), numpy.float32(a), numpy.float32(b)), shared_mem=66560)


def driver_set(f):
    import ctypes
    lib = ctypes.CDLL("libcuda.so.1")
    lib.cuFuncSetAttribute(ctypes.c_void_p(f.ptr), 8, 66560)


main()
