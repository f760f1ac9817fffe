set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof; mkdir -p $OUT $STOF_CACHE_DIR
export PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at add_norm; timeout 40 python3 scratch/add_norm.py > $OUT/add_norm.txt 2>&1; grep -E "^large" $OUT/add_norm.txt | cut -c1-160
at terms; timeout 80 python3 scratch/rest5.py terms > $OUT/terms.txt 2>&1; cut -c1-330 $OUT/terms.txt | tail -12
at tests; timeout -s INT -k 5 120 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 12 -p xdist tests/ops/test_add_norm.py tests/ops/test_attention_scores.py tests/ops/test_relative_bias.py tests/ops/test_attention_sm90_gpu.py > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | cut -c1-200 | head -20
at end
