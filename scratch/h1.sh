set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR /tmp/kept
site=/tmp/site; for v in .gpu/vendor1/*.whl; do [ -e "$v" ] && python3 -m zipfile -e "$v" $site; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
bash scratch/next.sh minilm | tail -1
TORCHINDUCTOR_CACHE_DIR=/tmp/inductor_warm setsid nice -n 15 timeout 420 python3 scratch/gemm_warm.py 6 > /tmp/warm.txt 2>&1 & warm=$!
at racecheck; timeout 95 compute-sanitizer --tool racecheck python3 -m pytest -q -x -p no:cacheprovider -m gpu tests/ops/test_gemm_gemm.py tests/ops/test_gemm_few_rows.py tests/ops/test_add_norm.py tests/ops/test_gemm_sm80.py -k "not large" > $OUT/race.txt 2>&1; grep -E "SUMMARY|Race reported|passed|failed|hazard" $OUT/race.txt | sort | uniq -c | tail -8; tail -3 $OUT/race.txt | cut -c1-200
kill -- -$warm 2> /dev/null; wait $warm 2> /dev/null; tail -2 /tmp/warm.txt
at sm80; timeout 60 python3 scratch/rest5.py terms80 > $OUT/t80.txt 2>&1; tail -4 $OUT/t80.txt
at end
