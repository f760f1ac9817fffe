set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR
export PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
(timeout 100 python3 scratch/flex_terms.py > $OUT/flex.txt 2>&1) & flex=$!
at warm; timeout 60 python3 scratch/rest5.py warm > $OUT/warm.txt 2>&1; tail -1 $OUT/warm.txt; wait $flex; grep flex $OUT/flex.txt | tail -6
at terms; timeout 80 python3 scratch/rest5.py terms > $OUT/terms.txt 2>&1; cut -c1-330 $OUT/terms.txt | tail -12
at flex; timeout 40 python3 scratch/flex_terms.py > $OUT/flex.txt 2>&1; tail -4 $OUT/flex.txt
at end
