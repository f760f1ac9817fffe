export STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD:$PWD/.gpu/site
python3 -m stof_cupy.jit --arch 90a --jobs 16 --out /tmp/stof/kernels > $OUT/jit.txt 2>&1; tail -1 $OUT/jit.txt
timeout 230 python3 -m pytest -q -n 6 -p xdist --maxfail=40 -p no:cacheprovider -m gpu --require-gpu --benchmark-disable tests stof_cupy > $OUT/test.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/test.txt | cut -c1-220 | tail -40
PYTHONPATH=$PWD timeout 150 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu benchmarks/bench_masks.py -k "(8192 or 32768) and not flag" --benchmark-only --benchmark-disable-gc --commit=$(cat .gpu/commit) --benchmark-json=$OUT/bench.json > $OUT/bench.txt 2>&1; tail -1 $OUT/bench.txt
python3 - <<'P'
import json,os
d=json.load(open(os.environ['OUT']+'/bench.json'))
rows={}
for b in d['benchmarks']:
    w,n,s=b['params'].get('way'),b['params'].get('name'),b['params'].get('s')
    e=b['extra_info']; rows.setdefault((s,n),{})[w]=b['stats']['median']*1e3
for k,v in sorted(rows.items(), key=str): print(k, {w:round(x,3) for w,x in v.items()})
P
