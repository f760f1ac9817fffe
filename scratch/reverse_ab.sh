# Do norms that go from the last row to the first find more in L2 (what the product wrote last), and the next product what they wrote last? One GPU, 60 s.
export OUT=${OUT:-/tmp/out}; mkdir -p $OUT /tmp/v
here=$PWD
for v in base reversed; do
  rm -rf /tmp/v/$v; mkdir -p /tmp/v/$v; cp -r stof_cupy cuda benchmarks /tmp/v/$v/
done
sed -i 's/row = static_cast<i64>(blockIdx.x) \*/row = static_cast<i64>(gridDim.x - 1 - blockIdx.x) */' /tmp/v/reversed/cuda/norm.cuh; diff /tmp/v/base/cuda/norm.cuh /tmp/v/reversed/cuda/norm.cuh
for round in 1 2 3; do for v in base reversed; do
  (cd /tmp/v/$v; STOF_CACHE_DIR=/tmp/stofr_$v PYTHONPATH=$PWD:$PWD/benchmarks timeout 60 python3 benchmarks/engine_grid.py --out /tmp/v/$v.jsonl --cells ${CELLS:-bert-base:16x2048:sliding gpt2:16x2048:sliding bert-base:8x512:full} --ways ours --commit $v 2>&1 | grep -vE "Warn|warn" | sed "s/^/$v $round /")
done; done
