# What issue 5's reviewer missed (about 150 s): terms of scores on and off, random 128-blocks, every candidate of the small cells, grouped heads, regret of windows and documents.
set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof; mkdir -p $OUT $STOF_CACHE_DIR
export PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
for part in terms blocks small gqa; do at $part; timeout 70 python3 scratch/rest5.py $part > $OUT/$part.txt 2>&1; cut -c1-330 $OUT/$part.txt | tail -14; done
at regret; for only in sliding document; do timeout 75 python3 benchmarks/regret.py --out $OUT/regret_h200.json --only $only --budget 45 --commit "$(cat .gpu/commit)" > $OUT/regret.txt 2>&1; tail -14 $OUT/regret.txt | cut -c1-170; done
at end
