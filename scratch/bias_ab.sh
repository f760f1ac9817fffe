# Is it worth it that Hopper's products ask L2 for their bias before earlier kernels end? One GPU, 40 s.
export OUT=${OUT:-/tmp/out}; mkdir -p $OUT /tmp/v
for v in asks not; do rm -rf /tmp/v/$v; mkdir -p /tmp/v/$v; cp -r stof_cupy cuda benchmarks /tmp/v/$v/; done
sed -i 's/if constexpr (K::Epilogue::kBias) {/if constexpr (K::Epilogue::kBias \&\& K::kStages == 99) {/' /tmp/v/not/cuda/gemm/sm90_producer.cuh; diff /tmp/v/asks/cuda/gemm/sm90_producer.cuh /tmp/v/not/cuda/gemm/sm90_producer.cuh
for round in 1 2; do for v in asks not; do
  (cd /tmp/v/$v; STOF_CACHE_DIR=/tmp/stofv_$v PYTHONPATH=$PWD:$PWD/benchmarks timeout 60 python3 benchmarks/engine_grid.py --out /tmp/v/$v.jsonl --cells ${CELLS:-bert-base:1x128:full gpt2:1x128:full bert-base:8x512:longformer} --ways ours --commit $v 2>&1 | grep -vE "Warn|warn" | sed "s/^/$v $round /")
done; done
