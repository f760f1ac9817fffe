import sys; sys.path.insert(0,'/tmp/w')
from mkvar import *
def cur(v):
    return tree(v)
def no_together(d):
    f=f'{d}/cuda/gemm/sm90_shape.cuh'; s=open(f).read()
    import re
    i=s.index('  static constexpr int kRoom ='); j=s.index('  static_assert(kAcross == 0 || kBlocks <= 2);')
    s=s[:i]+'  static constexpr int kBuffers = kReadsAhead || kAcross > 0 ? 4 : 2;\n  static constexpr int kTogether = 1;\n'+s[j:]
    open(f,'w').write(s)
    f=f'{d}/stof_cupy/jit/gemm_sm90.py'
    sub(f,'''            buffers = max(buffers, min(4, self._room(stages) // (2 * _BLOCK)))
''','''            pass
''')
def no_first(d):
    f=f'{d}/cuda/gemm/sm90_consumer.cuh'
    sub(f,'''    wait(K::full(smem, position.buffer()), position.full(), kFull);
    start<true>(sums);
    position.advance();
    output.read_ahead(unit);
#pragma unroll 1
    for (int k = 1; k < unit.steps; ++k, position.advance()) {
      wait(K::full(smem, position.buffer()), position.full(), kFull);
      start<false>(sums);
      ptx::wgmma_wait<1>();
      release({position.count - 1});
    }
''','''#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < K::kN / 2; ++i) sums[block][i] = 0.f;
#pragma unroll 1
    for (int k = 0; k < unit.steps; ++k, position.advance()) {
      wait(K::full(smem, position.buffer()), position.full(), kFull);
      start<false>(sums);
      if (k == 0) output.read_ahead(unit);
      ptx::wgmma_wait<1>();
      if (k > 0) release({position.count - 1});
    }
''')
def no_early(d):
    f=f'{d}/cuda/gemm/sm90_output.cuh'; s=open(f).read()
    i=s.index('  static constexpr bool kEarly ='); j=s.index(';',i)
    open(f,'w').write(s[:i]+'  static constexpr bool kEarly = false'+s[j:])
if 0: pass
if 0: d=tree('w3'); no_together(d)
if 0: d=tree('w2'); no_together(d); no_first(d)
if 0: d=tree('w1'); no_together(d); no_first(d); no_early(d)
