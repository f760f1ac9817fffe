# First call of the next session, with scratch/next.patch applied (git apply scratch/next.patch): are the changed kernels right (bounded waits first), and faster? About 60 s.
set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof; mkdir -p $OUT $STOF_CACHE_DIR
export PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at norm; timeout 70 python3 scratch/norm_check.py time > $OUT/norm_check.txt 2>&1; grep -E "FAULT|WRONG|checked|^\(|^rows|Error" $OUT/norm_check.txt | cut -c1-260 | tail -34
at add_norm; timeout 40 python3 scratch/add_norm.py > $OUT/add_norm.txt 2>&1; grep -E "^large" $OUT/add_norm.txt | cut -c1-215
at tests; timeout -s INT -k 5 90 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 12 -p xdist tests/ops/test_gemm_norm.py tests/ops/test_add_norm.py tests/ops/test_gemm_sm90.py -k "norm or stream" > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | cut -c1-200 | head -20
at end
