"""jobs.json for pool.py: all that issues 6 to 9 lack on a GPU, in order of worth."""
import json
from pathlib import Path

T = "timeout -s INT $((LIMIT-8)) python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -rs "
SUM = r"; r=$?; grep -hE '^(FAILED|ERROR|E  )' $OUT/t.txt | cut -c1-180 | sort | uniq -c | sort -rn | head -12; grep -hE 'passed|failed|error' $OUT/t.txt | tail -1; exit $r"
REPORT = "OUT=/tmp/report KEEP=/tmp/report_kept COMMIT=$(cat .gpu/commit) LIMIT=$((LIMIT-5)) bash scratch/report_gpu.sh "
jobs = []


def job(name, est, cmd, limit=None, **more):
    jobs.append({"name": name, "est": est, "limit": limit or est * 2, "cmd": cmd, **more})


def tests(name, est, what, **more):
    job(name, est, f"{T} {what} > $OUT/t.txt 2>&1{SUM}", tail=14, **more)


PEERS = ["fa3", "flashinfer", "fa4"]
grid = "timeout -s INT $((LIMIT-5)) python3 scratch/grid2.py 500 $(cat .gpu/commit) {} > $OUT/g.txt 2>&1; r=$?; grep -hE '^ *[0-9]+ s gpu|Error' $OUT/g.txt | grep -v E1129 | cut -c1-220; exit $r"
tests("t29", 60, "tests/runtime/test_program_gpu.py tests/runtime/test_cuda_path.py tests/engine/test_engine_gpu.py tests/ops/test_attention_device_masks.py -k 'another_device'", lane=[3], gpus="3,2", limit=110)
tests("gemm_tests", 150, "-n 20 -p xdist tests/ops/test_gemm*.py tests/ops/test_add_norm.py", lane=[2], limit=280)
job("models_times", 90, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py > $OUT/t.txt 2>&1; r=$?; grep -E '^==|Error|Warning' $OUT/t.txt; sed -n '/CuPy/,$p' $OUT/t.txt; exit $r", limit=220, tail=30)
job("decode_runs", 120, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/decode_runs.py tokens products", limit=220, tail=40)
for stack in ("bert-large", "gpt2", "llama-1b", "vit-b"):
    job("grid_" + stack, 230, grid.format(stack + ":1x128"), limit=420, tail=6)
job("grid_vit8", 190, grid.format("vit-b:8x512"), limit=300, tail=6)
job("gemm_cells", 40, r"""cp scratch/lanes/gemm.json $OUT/gemm.json; timeout -s INT 70 python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget 60 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json -k "not compiled and ((fold and 8192x8192x8192) or (bias_gelu and (4096x768x3072 or 32768x2048x8192)))" > $OUT/b.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/b.txt | cut -c1-160 | tail -5; python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep wanted $OUT/summary.txt""", tail=14)
job("check", 60, REPORT + "check", limit=170, needs=PEERS, tail=26)
job("warm_paper", 110, "export PEERS=/tmp/peers; W=1 " + REPORT + "warm_paper", limit=190, needs=PEERS, after=["check"], tail=8)
for m in ("causal", "sliding", "longformer", "bigbird"):
    job("paper_" + m, 120, f"K=paper-{m} " + REPORT + "cells_paper", limit=260, after=["warm_paper"], tail=8)
job("models_small", 130, f"OMP_NUM_THREADS=2 {T} -n 8 -p xdist tests/models -k 'not flan and not small_on_the_gpu and not real_decoders and not rxnfp and not bert_head' > $OUT/t.txt 2>&1{SUM}", limit=240, tail=14)
job("memcheck", 150, r"""timeout -k 5 $((LIMIT-10)) compute-sanitizer --tool memcheck --target-processes all python3 -m pytest -q -p no:cacheprovider -m gpu tests/ops/test_gemm_sm90.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_norm.py tests/ops/test_packing.py -k "float16 or norm or packing" > $OUT/t.txt 2>&1; grep -E "ERROR SUMMARY|Invalid|passed|failed" $OUT/t.txt | tail -4""", limit=240)
job("warm_artifact", 80, "W=1 " + REPORT + "warm_artifact", limit=150, needs=PEERS, after=["check"], tail=8)
for m in ("sliding", "longformer", "bigbird"):
    job("artifact_" + m, 110, f"K=artifact-{m} " + REPORT + "cells_artifact", limit=240, after=["warm_artifact"], tail=8)
job("suite", 190, f"P='timeout -s INT $((LIMIT-50)) python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable'; $P -n 20 -p xdist tests stof_cupy --deselect tests/ops/test_attention_fuzz.py --ignore tests/runtime/test_program_gpu.py --ignore-glob 'tests/ops/test_gemm*.py' --deselect tests/models/test_t5.py::test_flan_t5_small_on_the_gpu --ignore tests/models/test_real_decoders.py --ignore tests/models/test_rxnfp.py --ignore tests/models/test_bert_head.py -k 'not dinov2_small' > $OUT/suite.txt 2>&1; r=$?; timeout 40 $P tests/runtime/test_program_gpu.py > $OUT/memory.txt 2>&1; grep -hE 'passed|failed' $OUT/suite.txt $OUT/memory.txt | tail -2; grep -hE '^(FAILED|ERROR|E  )' $OUT/suite.txt $OUT/memory.txt | cut -c1-170 | sort | uniq -c | sort -rn | head -20; exit $r", limit=330, needs=["minilm"], tail=24)
job("fusion", 110, REPORT + "fusion", limit=190, tail=8)
job("tuning", 60, REPORT + "tuning", limit=130, tail=8)
job("ablation", 120, REPORT + "ablation", limit=200, tail=8)
job("warm_scaling", 60, "W=1 " + REPORT + "warm_scaling", limit=140, needs=PEERS, after=["check"], tail=8)
for axis in ("seq", "density", "batch"):
    job("scaling_" + axis, 90, f"K=scaling-{axis} A={axis} " + REPORT + "cells_scaling", limit=200, after=["warm_scaling"], tail=8)
for name, est, what, needs in (
    ("microformer", 40, "tests/models/test_real_decoders.py -k microformer", ["microformer", "gguf"]),
    ("small_real", 50, "tests/models/test_rxnfp.py tests/models/test_bert_head.py", ["small"]),
    ("flan", 50, "tests/models/test_t5.py -k flan", ["flan"]),
    ("smollm2", 60, "tests/models/test_real_decoders.py -k smollm2", ["smollm2", "gguf"]),
    ("dinov2", 40, "tests/models/test_images.py -k dinov2_small", ["dinov2"]),
    ("gemma3", 120, "tests/models/test_real_decoders.py -k gemma", ["gemma3", "gguf"]),
):
    tests("m_" + name, est, what, needs=needs, limit=2 * est + 60)
job("start", 150, REPORT + "start", limit=230, after=["warm_artifact", "warm_scaling"], tail=8)
job("masks", 200, REPORT + "masks", limit=300, tail=8)
job("decoding", 50, REPORT + "decoding", limit=110, tail=8)
job("fuzz", 80, "timeout $((LIMIT-5)) python3 -m tests.ops.fuzz_attention --cases 5000 --processes 16 --limit 70 > $OUT/f.txt 2>&1; tail -5 $OUT/f.txt", limit=120)
job("warm_anchors", 90, "W=1 " + REPORT + "warm_anchors", limit=160, needs=PEERS, after=["check"], tail=8)
for part in ("anchors", "small", "elements"):
    job("attention_" + part, 140, f"K={part} " + REPORT + "cells_attention", limit=260, after=["warm_anchors"], tail=8)
for size in ("16x2048", "8x512"):
    for stack in ("bert-base", "gpt2", "vit-b", "bert-large", "llama-1b"):
        job(f"again_{stack}_{size}", 150, "export AGAIN=1; " + grid.format(f"{stack}:{size}"), limit=420, tail=6)
Path(__file__).with_name("jobs.json").write_text(json.dumps(jobs, indent=1))
print(len(jobs), sum(j["est"] for j in jobs), "s of one GPU")
