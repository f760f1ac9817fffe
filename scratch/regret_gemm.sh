mkdir -p /tmp/parts /tmp/stof; cp .gpu/part00 /tmp/parts/
export STOF_CACHE_DIR=/tmp/stof
PYTHONPATH=$PWD timeout 85 python3 benchmarks/regret.py --out $OUT/regret.json --budget 55 --commit $(cat .gpu/commit) > $OUT/regret.txt 2>&1; tail -16 $OUT/regret.txt | cut -c1-150; date +%T
PYTHONPATH=$PWD timeout 75 python3 .gpu/gemm_sm90.py simple > $OUT/gemm.txt 2>&1; tail -42 $OUT/gemm.txt | cut -c1-140; date +%T
