# Session 15, call A (two GPUs): one half of MiniLM and the GEMM's tests on GPU 1; cells of the GEMM benchmark on GPU 0.  carry scratch .gpu/site .gpu/commit .gpu/vendor1 .gpu/minilm.0
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
for v in .gpu/vendor1/*.whl; do python3 -m zipfile -e "$v" /tmp/site; done
export PYTHONPATH=/tmp/site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
(export CUDA_VISIBLE_DEVICES=1 STOF_CACHE_DIR=/tmp/stof; bash scratch/next.sh minilm; timeout 75 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -n 20 -p xdist tests/ops/test_gemm*.py tests/ops/test_add_norm.py > $OUT/gemm_tests.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/gemm_tests.txt | cut -c1-170 | tail -12) &
export CUDA_VISIBLE_DEVICES=0 STOF_CACHE_DIR=/tmp/stofg0; cp scratch/earlier/gemm.json $OUT/gemm.json
timeout -s INT 78 python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget 70 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json -k "not compiled and ((bias_gelu and (512x or 4096x or 32768x or 8192x)) or (128x and (plain or bias_gelu) and (x3072- or x4096- or x8192- or x2048- or x1536-)) or (fold and 8192x8192x8192))" > $OUT/bench.txt 2>&1
grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/bench.txt | cut -c1-160 | tail -5; python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -E "bias|plain|fold|LayerNorm" $OUT/summary.txt | grep wanted
wait
