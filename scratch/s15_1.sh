# Session 15, call 1 (one nvidia-h200; 560 s): does load change which kernel is fastest; issue 6's rest; packed lists; then cells of the grid.
#   carry scratch .gpu/site .gpu/commit .gpu/vendor1
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1 STOF_CACHE_DIR=/tmp/stof TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor; mkdir -p $OUT; t0=$(date +%s)
[ -e /tmp/site/nvmath ] || for v in .gpu/vendor1/*.whl; do python3 -m zipfile -e "$v" /tmp/site; done
export PYTHONPATH=/tmp/site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
at() { echo "== $(($(date +%s) - t0)) s: $*"; }
at "tests of packing and lists"; timeout 100 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -n 8 -p xdist tests/ops/test_packing.py tests/runtime/test_program_gpu.py tests/engine tests/models/test_inputs.py tests/ops/test_gemm_choice.py tests/ops/test_small_ops.py 2>&1 | grep -E "^(FAILED|ERROR|E  )|passed|failed" | cut -c1-170 | tail -12
at "under load"; timeout 110 python3 scratch/under_load.py $OUT/under_load.json 2>&1 | tee $OUT/under_load.txt | grep -v "^    "
at ragged; timeout 100 python3 scratch/ragged.py 2>&1 | tee $OUT/ragged.txt | tail -12
at "memcheck of tests"; timeout -k 5 150 compute-sanitizer --tool memcheck --target-processes all python3 -m pytest -q -p no:cacheprovider -m gpu tests/ops/test_gemm_sm90.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_norm.py tests/ops/test_packing.py -k "float16 or norm or packing" > $OUT/memcheck.txt 2>&1; grep -E "ERROR SUMMARY|Invalid|passed|failed" $OUT/memcheck.txt | tail -4
at "GEMM cells"; cp scratch/earlier/gemm.json $OUT/gemm.json
timeout -s INT 90 python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget 80 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json -k "not compiled and fold and (4096x or 32768x or 512x)" > $OUT/bench.txt 2>&1
grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/bench.txt | cut -c1-160 | tail -5; python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep "LayerNorm + bias" $OUT/summary.txt
at end
