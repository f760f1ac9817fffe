set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR /tmp/kept
site=/tmp/site; for v in .gpu/vendor1/*.whl; do [ -e "$v" ] && python3 -m zipfile -e "$v" $site; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at tests; timeout -s INT -k 5 60 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 8 -p xdist tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | cut -c1-200 | head -20
grep -q failed $OUT/tests.txt && exit 1
bash scratch/next.sh minilm | tail -2
python3 -c "from stof_cupy.ops import gemm_vendor; print(\"vendor\", gemm_vendor.version())"
cp scratch/earlier/gemm.json $OUT/gemm.json
bench() { timeout -s INT $(($1 + 15)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget $1 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json "${@:2}" > /tmp/bench.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" /tmp/bench.txt | cut -c1-160 | tail -5; }
at few; bench 30 -k "copy or (plain and (-1x or -16x))"
at norm; bench 30 -k "layer_norm and not compiled and (512x or 4096x or 32768x)"
cp $OUT/gemm.json /tmp/kept/; python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -E "^ *(1|16) " $OUT/summary.txt | cut -c1-110; tail -24 $OUT/summary.txt | cut -c1-170
at memcheck; timeout 40 compute-sanitizer --tool memcheck python3 scratch/gemm_bench.py -q -x -p no:cacheprovider -m gpu tests/ops/test_gemm_streamed.py > $OUT/memcheck.txt 2>&1; grep -E "SUMMARY|Invalid|passed|failed" $OUT/memcheck.txt | sort | uniq -c | tail -4
at end
