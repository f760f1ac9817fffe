# joined_rows.patch: right on the GPU, and faster in stacks? One GPU, 90 s.
export OUT=${OUT:-/tmp/out}; mkdir -p $OUT /tmp/v
for v in base joined; do rm -rf /tmp/v/$v; mkdir -p /tmp/v/$v; cp -r stof_cupy cuda benchmarks tests conftest.py pyproject.toml setup.cfg /tmp/v/$v/ 2>/dev/null; done
(cd /tmp/v/joined && patch -p1 -s < $OLDPWD/scratch/joined_rows.patch || git apply $OLDPWD/scratch/joined_rows.patch) || exit 1
(cd /tmp/v/joined; STOF_CACHE_DIR=/tmp/stofj_joined PYTHONPATH=$PWD timeout 100 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu tests/ops/test_gemm_sm90.py tests/ops/test_gemm_stages.py -k joined 2>&1 | grep -E "^(FAILED|ERROR|E  )|passed|failed" | cut -c1-160 | tail -8)
for round in 1 2; do P=; [ $round = 2 ] && P=--profile; for v in base joined; do
  (cd /tmp/v/$v; STOF_CACHE_DIR=/tmp/stofj_$v PYTHONPATH=$PWD:$PWD/benchmarks timeout 90 python3 benchmarks/engine_grid.py --out /tmp/v/$v.jsonl --cells ${CELLS:-bert-base:1x128:full gpt2:1x128:full bert-large:1x128:full llama-1b:1x128:full} --ways ours --commit $v $P 2>&1 | grep -vE "Warn|warn" | sed "s/^/$v $round /")
done; done
