# Issue 6's rest: memcheck of what is there now, then all cells without torch.compile but LayerNorm's (measured at 2b79c47) anew.   carry scratch .gpu/site .gpu/commit .gpu/vendor1
# Before: cells to be run again are taken out of scratch/earlier/gemm.json (see PLAN.md).
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor; mkdir -p $OUT
[ -e /tmp/site/nvmath ] || for v in .gpu/vendor1/*.whl; do python3 -m zipfile -e "$v" /tmp/site; done
export PYTHONPATH=/tmp/site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at compile; timeout 60 python3 scratch/race.py sm80 pair few norms statistics late 2>&1 | tail -6
at memcheck; for part in norms statistics few pair late sm80; do timeout -k 5 40 compute-sanitizer --tool memcheck python3 scratch/race.py $part 2>&1 | grep -E "ERROR SUMMARY|Invalid|^$part:" | sort | uniq -c; done
at "memcheck of tests"; timeout -k 5 75 compute-sanitizer --tool memcheck --target-processes all python3 -m pytest -q -p no:cacheprovider -m gpu tests/ops/test_gemm_sm90.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_norm.py tests/ops/test_gemm_stages.py -k "${TESTS:-float16 or norm}" > $OUT/memcheck.txt 2>&1; grep -E "ERROR SUMMARY|Invalid|passed|failed" $OUT/memcheck.txt | tail -4
at bench; cp scratch/earlier/gemm.json $OUT/gemm.json
timeout -s INT 300 python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget 280 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json -k "not compiled and (plain or bias_gelu or swiglu or fold or copy)" > $OUT/bench.txt 2>&1
grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/bench.txt | cut -c1-160 | tail -5
python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; tail -22 $OUT/summary.txt | cut -c1-170
at end
