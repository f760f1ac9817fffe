"""jobs.json for pool.py: the session after the sixteenth. python3 scratch/lanes/make_jobs.py [first|last]: experiments and what lacks a measurement; then everything again of the code as committed.

`scratch/decode.patch` is applied before `first` (it is off by default). make_jobs16.py is what the sixteenth session ran.
"""
import json, sys
from pathlib import Path

which = sys.argv[1] if len(sys.argv) > 1 else "first"
T = "timeout -s INT $((LIMIT-8)) python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -rs "
SUM = r"; r=$?; grep -hE '^(FAILED|ERROR|E  )' $OUT/t.txt | cut -c1-180 | sort | uniq -c | sort -rn | head -12; grep -hE 'passed|failed|error' $OUT/t.txt | tail -1; exit $r"
REPORT = "export OUT=/tmp/report KEEP=/tmp/report_kept COMMIT=$(cat .gpu/commit) LIMIT=$((LIMIT-5)); bash scratch/report_gpu.sh "
PEERS = ["fa3", "flashinfer", "fa4"]
jobs = []


def job(name, est, cmd, limit=None, **more):
    jobs.append({"name": name, "est": est, "limit": limit or est * 2, "cmd": cmd, **more})


def tests(name, est, what, **more):
    job(name, est, f"{T} {what} > $OUT/t.txt 2>&1{SUM}", tail=14, **more)


def bench(name, est, module, args, file, **more):  # to a results file that begins as the repository's, or empty
    job(name, est, f"mkdir -p /tmp/report; [ -e /tmp/report/{file} ] || cp -n benchmarks/results/{file} /tmp/report/ 2>/dev/null; PYTHONPATH=$PYTHONPATH:/tmp/peers/fa4:/tmp/peers/fa4/nvidia_cutlass_dsl/dsl_packages:/tmp/peers/fa3:/tmp/peers/flashinfer "
        f"FLASHINFER_DISABLE_JIT=1 FLASHINFER_WORKSPACE_BASE=/tmp FLASHINFER_CUDA_ARCH_LIST=9.0a FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=/tmp/fa4_cache "
        f"timeout -s INT $((LIMIT-5)) python3 -m pytest benchmarks/bench_{module}.py -m gpu --require-gpu --benchmark-only --benchmark-disable-gc --benchmark-quiet -q -rs -p no:cacheprovider --budget $((LIMIT-45)) "
        f"--results /tmp/report/{file} --commit $(cat .gpu/commit) {args} > $OUT/t.txt 2>&1{SUM}", tail=8, **more)


def rest():
    tests("gemm_tests", 150, "-n 20 -p xdist tests/ops/test_gemm*.py tests/ops/test_add_norm.py", limit=280)
    job("suite", 200, f"P=\"timeout -s INT $((LIMIT-50)) python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable\"; $P -n 20 -p xdist tests stof_cupy --deselect tests/ops/test_attention_fuzz.py --ignore tests/runtime/test_program_gpu.py --ignore-glob 'tests/ops/test_gemm*.py' --deselect tests/models/test_t5.py::test_flan_t5_small_on_the_gpu --ignore tests/models/test_real_decoders.py --ignore tests/models/test_rxnfp.py --ignore tests/models/test_bert_head.py -k 'not dinov2_small' > $OUT/suite.txt 2>&1; r=$?; $P tests/runtime/test_program_gpu.py > $OUT/memory.txt 2>&1; grep -hE 'passed|failed' $OUT/suite.txt $OUT/memory.txt | tail -2; grep -hE '^(FAILED|ERROR|E  )' $OUT/suite.txt $OUT/memory.txt | cut -c1-170 | sort | uniq -c | sort -rn | head -20; exit $r", limit=330, needs=["minilm"], tail=24)
    tests("t29", 60, "tests/runtime/test_program_gpu.py tests/runtime/test_cuda_path.py tests/engine/test_engine_gpu.py tests/ops/test_attention_device_masks.py tests/test_interop.py -k 'another_device or two or device'", lane=[3], gpus="3,2", limit=150)
    for name, est, what, needs in (
        ("microformer", 40, "tests/models/test_real_decoders.py -k microformer", ["microformer", "gguf"]),
        ("small_real", 50, "tests/models/test_rxnfp.py tests/models/test_bert_head.py", ["small"]),
        ("flan", 50, "tests/models/test_t5.py -k flan", ["flan"]),
        ("smollm2", 120, "tests/models/test_real_decoders.py -k smollm2", ["smollm2", "gguf"]),
        ("dinov2", 40, "tests/models/test_images.py -k dinov2_small", ["dinov2"]),
        ("gemma3", 80, "tests/models/test_real_decoders.py -k gemma", ["gemma3", "gguf"]),
    ):
        tests("m_" + name, est, what, needs=needs, limit=2 * est + 60)
    job("fuzz", 80, "timeout $((LIMIT-5)) python3 -m tests.ops.fuzz_attention --cases 5000 --processes 16 --limit 70 > $OUT/f.txt 2>&1; tail -5 $OUT/f.txt", limit=120)
    job("memcheck", 150, r"""timeout -k 5 $((LIMIT-10)) compute-sanitizer --tool memcheck --target-processes all python3 -m pytest -q -p no:cacheprovider -m gpu tests/ops/test_attention_token.py tests/ops/test_token_chain.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py tests/ops/test_decoder_ops.py -k float16 > $OUT/t.txt 2>&1; grep -E "ERROR SUMMARY|Invalid|passed|failed" $OUT/t.txt | tail -4""", limit=300)


if which == "ab":
    for m in ("smollm2", "llama-1b"):
        job("ab_" + m, 150, f"PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/compile_specs.py scratch/decode_ab_specs.pkl.xz > $OUT/c.txt 2>&1; PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-20)) python3 scratch/decode_ab.py {m} --trace all base", limit=330, tail=70)
    tests("token_tests", 90, "-n 10 -p xdist tests/ops/test_token_chain.py tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py", limit=200)
    job("token_times", 90, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/token_times.py; for s in greedy session; do PYTHONPATH=$PWD:$PYTHONPATH timeout 60 python3 scratch/token_times.py $s; done", limit=260, tail=40)
    for i in range(4):
        bench(f"gemm_compiled{i}", 100, "gemm", "--heavy -k compiled", "gemm_h200_2026-11-29.json", limit=560, lane=[i])
elif which == "ab2":
    B = "all,normed=0"
    combos = [B] + [f"{B},{x}" for x in ("ahead=1", "ahead=0", "early=0", "once=1", "stay=1", "once=1,stay=1", "near=0", "whole=0", "carveout=1", "only=few", "only=streamed", "ahead=1,once=1", "ahead=1,stay=1", "ahead=1,once=1,stay=1", "ahead=1,whole=0", "ahead=1,near=0", "ahead=1,early=0", "ahead=1,carveout=1", "ahead=1,only=few", "ahead=1,only=streamed")]
    for i, m in enumerate(("smollm2", "llama-1b")):
        job("ab_" + m, 60, f"PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/compile_specs.py scratch/decode_ab_specs.pkl.xz > $OUT/c.txt 2>&1; PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-20)) python3 scratch/decode_ab.py {m} --set {' '.join(combos)} --trace {B} {B},ahead=1 {B},ahead=1,only=streamed", limit=150, tail=70)
    bench("ragged", 70, "ragged", "", "ragged_h200.json", limit=160)
    bench("search", 90, "search", "", "search_h200.json", limit=200)
elif which == "mini":
    job("times", 100, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py > $OUT/t.txt 2>&1; sed -n '/CuPy/,$p' $OUT/t.txt; PYTHONPATH=$PWD timeout 60 python3 scratch/decode_runs.py tokens", limit=190, tail=40, lane=[0])
    job("profile", 60, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/profile_decode.py smollm2 llama-1b; PYTHONPATH=$PWD:$PYTHONPATH timeout 60 python3 scratch/token_times.py", limit=190, tail=70, lane=[1])
    tests("token_tests", 90, "-n 10 -p xdist tests/ops/test_token_chain.py tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py tests/models/test_session.py tests/models/test_decoders.py", limit=200, lane=[2])
    job("again", 60, "for i in 1 2; do PYTHONPATH=$PWD:$PYTHONPATH timeout 70 python3 -X faulthandler scratch/token_times.py session; done", limit=120, tail=60, lane=[2])
    for i in range(2):
        bench(f"ablation{i}", 100, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=280, lane=[3, 2])
elif which == "final":
    for i, m in enumerate(("llama-1b", "smollm2")):
        job("ab_" + m, 30, f"PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/decode_ab.py {m} --trace base nocarve", limit=100, tail=30, lane=[i])
    bench("ragged", 70, "ragged", "--again", "ragged_h200.json", limit=160, lane=[2])
    tests("token_tests", 60, "-n 10 -p xdist tests/ops/test_token_chain.py tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py tests/runtime/test_recorder.py", limit=150, lane=[3])
    job("times", 90, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py > $OUT/t.txt 2>&1; sed -n '/CuPy/,$p' $OUT/t.txt", limit=190, tail=30, lane=[0])
    job("again", 60, "PYTHONPATH=$PWD:$PYTHONPATH timeout 80 python3 -X faulthandler scratch/token_times.py session; PYTHONPATH=$PWD timeout 80 python3 scratch/decode_runs.py tokens", limit=150, tail=30, lane=[1])
    bench("gemm_few", 130, "gemm", "-k 'plain-1x or plain-16x or bias_gelu-1x or bias_gelu-16x or swiglu-1x or swiglu-16x or fold-1x or fold-16x or copy' --again", "gemm_h200_2026-11-29.json", limit=220, lane=[3])
    for i in range(4):
        bench(f"gemm_compiled{i}", 200, "gemm", "--heavy -k compiled", "gemm_h200_2026-11-29.json", limit=400)
    job("check", 60, REPORT + "check", limit=170, needs=PEERS, tail=26)
    job("warm_artifact", 80, REPORT.replace("export", "export W=1") + "warm_artifact", limit=150, needs=PEERS, after=["check"], tail=4)
    bench("artifact_longformer", 120, "paper_attention", "-k artifact-longformer --again", "paper_attention_h200.json", after=["warm_artifact"], limit=240)
    bench("batch8x128", 60, "paper_attention", "-k 8x128 --again", "paper_attention_h200.json", after=["warm_artifact"], limit=150)
    bench("decoding", 60, "attention", "-k decoding --again", "attention_h200.json", needs=PEERS, limit=140)
    bench("flashinfer", 150, "attention", "-k 'anchors or small' --again", "attention_h200.json", needs=PEERS, after=["check"], limit=330)
    bench("scaling_density", 60, "paper_scaling", "-k density --again", "paper_scaling_h200.json", needs=PEERS, after=["check"], limit=150)
    
    rest()
    bench("ablation", 60, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=200)
    bench("tuning", 150, "paper_tuning", "-k bench_tuning", "paper_tuning_h200.json", limit=280)
    bench("first_stack", 100, "paper_start", "-k first_stack --older", "paper_start_h200.json", limit=220)
    bench("minilm", 100, "engine", "", "engine_h200.json", needs=["minilm"], limit=220)
    for i in range(4):
        bench(f"t5_{i}", 100, "paper_stacks", "-k t5", "paper_stacks_h200.json", limit=520)
elif which == "next":  # the session after the seventeenth: everything again at its head, and what issue 9 lacks
    bench("ragged", 70, "ragged", "--again", "ragged_h200.json", limit=160, lane=[2])  # with nothing else but short things beside it
    for i, m in enumerate(("llama-1b", "smollm2")):
        job("ab_" + m, 30, f"PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/decode_ab.py {m}", limit=100, tail=12, lane=[i])
    tests("token_tests", 60, "-n 10 -p xdist tests/ops/test_token_chain.py tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py tests/runtime/test_recorder.py", limit=150, lane=[3])
    bench("gemm_few", 60, "gemm", "-k 'plain-1x or plain-16x or bias_gelu-1x or bias_gelu-16x or swiglu-1x or swiglu-16x or fold-1x or fold-16x or copy' --again", "gemm_h200_2026-11-29.json", limit=160, lane=[3])
    job("times", 80, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py > $OUT/t.txt 2>&1; sed -n '/CuPy/,$p' $OUT/t.txt", limit=190, tail=30, lane=[0])
    job("again", 90, "PYTHONPATH=$PWD:$PYTHONPATH timeout 80 python3 -X faulthandler scratch/token_times.py session; PYTHONPATH=$PWD timeout 80 python3 scratch/decode_runs.py tokens", limit=170, tail=30, lane=[1])
    bench("fold", 60, "gemm", "--heavy -k 'compiled and fold-512x2048x8192 or compiled and fold-32768x576x1536 or compiled and swiglu-512x768x3072' --again", "gemm_h200_2026-11-29.json", limit=160)
    rest()
    bench("flashinfer", 60, "attention", "-k 'anchors or small'", "attention_h200.json", needs=PEERS, limit=200)  # cells that the file lacks: delete those of FlashInfer that were skipped first, or --again -k with their names
    bench("ablation", 60, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=200)
    bench("tuning", 150, "paper_tuning", "-k bench_tuning", "paper_tuning_h200.json", limit=280)
    bench("first_stack", 100, "paper_start", "-k first_stack --older", "paper_start_h200.json", limit=220)
    bench("minilm", 100, "engine", "", "engine_h200.json", needs=["minilm"], limit=220)
    for i in range(4):
        bench(f"t5_{i}", 100, "paper_stacks", "-k t5", "paper_stacks_h200.json", limit=520)
    for i in range(2):
        bench(f"older_{i}", 200, "paper_stacks", "--older -k '(16x2048 or 8x512) and not llama'", "paper_stacks_h200.json", limit=420)
    job("regret", 250, "timeout $((LIMIT-5)) python3 benchmarks/regret.py --out $OUT/regret.json --budget $((LIMIT-60)) --commit $(cat .gpu/commit) > $OUT/t.txt 2>&1; tail -25 $OUT/t.txt", limit=330, tail=25)
elif which == "t5":  # nineteenth session, two GPUs
    bench("first_stack", 80, "paper_start", "-k first_stack --again", "paper_start_h200.json", limit=150, lane=[0])
    A = ["first_stack"]
    job("ab", 90, "B=$PWD/.gpu/base; N=$PWD; for t in $B $N; do (cd $t && PYTHONPATH=$t:$N/benchmarks:/tmp/site timeout 100 python3 $N/scratch/rest5.py warm > $OUT/w.txt 2>&1; PYTHONPATH=$t:$N/benchmarks:/tmp/site timeout 60 python3 $N/scratch/rest5.py terms); done; PYTHONPATH=$N:$N/benchmarks:/tmp/site timeout 100 python3 scratch/rest5.py terms80", limit=300, lane=[1], after=A, tail=30)
    bench("t5_big", 300, "paper_stacks", "-k 't5 and 16x2048' --older", "paper_stacks_h200.json", limit=620, lane=[0], after=A)
    bench("t5_mid", 300, "paper_stacks", "-k 't5 and 8x512' --older", "paper_stacks_h200.json", limit=620, lane=[1], after=A)
    bench("t5_small", 300, "paper_stacks", "-k 't5 and 1x128' --older", "paper_stacks_h200.json", limit=620, lane=[1], after=A)
    bench("ablation_t5", 50, "paper_fusion", "-k 'ablation and t5' --older", "paper_fusion_h200.json", limit=160, lane=[0], after=A)
    bench("tuning_t5", 30, "paper_tuning", "-k 'bench_tuning and t5' --older", "paper_tuning_h200.json", limit=160, lane=[0], after=A)
    bench("bias_gelu", 40, "gemm", "--heavy -k 'bias_gelu-512x16384x2048' --again", "gemm_h200_2026-11-29.json", limit=120, lane=[0], after=A)
    n = len(jobs); rest(); more = {j["name"]: j for j in jobs[n:]}; del jobs[n:]
    for name in ("suite", "t29", "m_small_real", "m_flan", "m_microformer", "m_dinov2", "gemm_tests", "m_smollm2", "m_gemma3", "fuzz"):
        j = more[name]; j["after"] = A; jobs.append(j)
        j["lane"] = [0] if name in ("suite", "t29") else [0, 1]
        if name == "suite": j["limit"] = 450
        if j.get("gpus"): j["gpus"] = "0,1"
    bench("scores", 120, "attention_scores", "", "attention_scores_h200.json", limit=420, lane=[0, 1], after=A)
elif which == "rest":  # eighteenth session, after the machine was lost; two GPUs
    tests("gemm_tests", 150, "-n 14 -p xdist tests/ops/test_gemm*.py tests/ops/test_add_norm.py", limit=400, lane=[0])
    bench("heavy_fold", 45, "gemm", "--heavy -k 'compiled and fold-512x2048x8192' --again", "gemm_h200_2026-11-29.json", limit=120, lane=[1])
    bench("flashinfer", 80, "attention", "-k 'anchors and (16x12x2048x64-block10 or 8x12x512x64-bigbird or 8x12x512x64-block10) or small and (bigbird or block10)' --again", "attention_h200.json", needs=PEERS, limit=200, lane=[1])
    bench("artifact", 90, "paper_attention", "-k 'artifact-longformer and (4096 or 16x2048)' --older", "paper_attention_h200.json", needs=PEERS, limit=240, lane=[1])
    bench("tuning", 130, "paper_tuning", "-k bench_tuning", "paper_tuning_h200.json", limit=280, lane=[1])
    bench("first_stack", 80, "paper_start", "-k first_stack --older", "paper_start_h200.json", limit=220, lane=[1])
    bench("minilm", 60, "engine", "", "engine_h200.json", needs=["minilm"], limit=200, lane=[1])
    bench("ablation", 50, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=160, lane=[1])
    n = len(jobs); rest(); more = {j["name"]: j for j in jobs[n:]}; del jobs[n:]
    for name in ("suite", "t29", "m_microformer", "m_small_real", "m_flan", "m_dinov2"):
        j = more[name]; j["lane"] = [0]; jobs.append(j)
        if name == "suite": j["limit"] = 450
        if j.get("gpus"): j["gpus"] = "0,1"
    job("prefill", 15, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py prefill", limit=60, lane=[1])
    for i in range(2):
        bench(f"t5_{i}", 60, "paper_stacks", "-k t5", "paper_stacks_h200.json", limit=700)
elif which == "last":  # eighteenth session: everything at its head, and what issue 9 lacks
    bench("ragged", 50, "ragged", "--again", "ragged_h200.json", limit=160, lane=[2])
    for name, est, what, needs in (
        ("smollm2", 120, "tests/models/test_real_decoders.py -k smollm2", ["smollm2", "gguf"]),
        ("gemma3", 120, "tests/models/test_real_decoders.py -k gemma", ["gemma3", "gguf"]),
    ):
        tests("m_" + name, est, what, needs=needs, limit=2 * est + 90)
    HEAVY = " or ".join(f"compiled and {k}-{c}" for k, c in (("bias_gelu", "4096x768x3072"), ("bias_gelu", "4096x1024x4096"), ("bias_gelu", "32768x2048x8192"), ("swiglu", "512x768x3072"), ("swiglu", "512x1024x4096"), ("swiglu", "4096x768x3072"), ("fold", "512x2048x8192"), ("fold", "32768x576x1536"), ("layer_norm", "32768x768x3072")))
    for i, k in enumerate(("swiglu", "bias_gelu", "fold", "layer_norm")):
        these = " or ".join(x for x in HEAVY.split(" or ") if f" {k}-" in x)
        bench(f"heavy_{k}", 90, "gemm", f"--heavy -k '{these}' --again", "gemm_h200_2026-11-29.json", limit=200)
    job("alone", 40, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/alone.py swiglu fold", limit=100, tail=30)
    for i, m in enumerate(("llama-1b", "smollm2")):
        job("ab_" + m, 30, f"PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/decode_ab.py {m}", limit=100, tail=12, lane=[i])
    job("times", 80, "PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/models_times.py > $OUT/t.txt 2>&1; sed -n '/CuPy/,$p' $OUT/t.txt", limit=190, tail=30, lane=[0])
    job("again", 90, "PYTHONPATH=$PWD:$PYTHONPATH timeout 80 python3 -X faulthandler scratch/token_times.py session; PYTHONPATH=$PWD timeout 80 python3 scratch/decode_runs.py tokens", limit=170, tail=30, lane=[1])
    for k in ("plain", "bias_gelu"):
        bench(f"gemm_{k}", 100, "gemm", f"-k '({k}-512x or {k}-4096x or {k}-8192x or {k}-32768x) and not compiled' --again", "gemm_h200_2026-11-29.json", limit=240)
    rest(); jobs[:] = [j for i, j in enumerate(jobs) if not (j["name"] in ("m_smollm2", "m_gemma3") and any(k["name"] == j["name"] for k in jobs[:i]))]
    bench("tuning", 150, "paper_tuning", "-k bench_tuning", "paper_tuning_h200.json", limit=280)
    for i in range(4):
        bench(f"t5_{i}", 100, "paper_stacks", "-k t5", "paper_stacks_h200.json", limit=520)
    bench("ablation", 60, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=200)
    bench("first_stack", 100, "paper_start", "-k first_stack --older", "paper_start_h200.json", limit=220)
    bench("minilm", 100, "engine", "", "engine_h200.json", needs=["minilm"], limit=220)
    bench("flashinfer", 90, "attention", "-k 'anchors and (16x12x2048x64-block10 or 8x12x512x64-bigbird or 8x12x512x64-block10) or small and (bigbird or block10)' --again", "attention_h200.json", needs=PEERS, limit=200)
    bench("artifact", 90, "paper_attention", "-k 'artifact-longformer and (4096 or 16x2048)' --older", "paper_attention_h200.json", needs=PEERS, limit=240)
    for i in range(2):
        bench(f"older_{i}", 200, "paper_stacks", "--older -k '(16x2048 or 8x512) and not llama'", "paper_stacks_h200.json", limit=420)
elif which == "exp":  # eighteenth session: where packed runs' time goes, which cells choose otherwise
    job("split", 50, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/ragged_split.py", limit=120, tail=90, lane=[0])
    bench("gemm_few", 60, "gemm", "-k 'plain-1x or plain-16x or bias_gelu-1x or bias_gelu-16x or swiglu-1x or swiglu-16x or fold-1x or fold-16x or copy' --again", "gemm_h200_2026-11-29.json", limit=160, lane=[1])
    job("alone_a", 100, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/alone.py fold bias_gelu", limit=200, tail=60, lane=[2])
    job("alone_b", 100, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/alone.py swiglu layer_norm plain", limit=200, tail=60, lane=[3])
    tests("host_tests", 40, "tests/runtime/test_program_gpu.py tests/ops/test_packing.py tests/runtime/test_recorder.py -k 'lists or threads or refused or on_a_gpu or packed'", limit=100, lane=[0])
    job("split_minilm", 40, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/ragged_split.py minilm", limit=100, tail=60, lane=[0])
    rest(); jobs[:] = [j for j in jobs if j["name"] in ("split", "gemm_few", "alone_a", "alone_b", "host_tests", "split_minilm", "memcheck")]
elif which == "first":
    tests("token_tests", 90, "-n 10 -p xdist tests/ops/test_token_chain.py tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py tests/ops/test_gemm_streamed.py tests/ops/test_gemm_few_rows.py", limit=200)
    for m in ("smollm2", "llama-1b"):
        job("ab_" + m, 150, f"PYTHONPATH=$PWD timeout $((LIMIT-5)) python3 scratch/compile_specs.py scratch/decode_ab_specs.pkl.xz > $OUT/c.txt 2>&1; PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-60)) python3 scratch/decode_ab.py {m} --trace all", limit=330, tail=60)
    job("token_times", 90, "PYTHONPATH=$PWD:$PYTHONPATH timeout $((LIMIT-5)) python3 scratch/token_times.py; for s in greedy session; do PYTHONPATH=$PWD:$PYTHONPATH timeout 60 python3 scratch/token_times.py $s; done", limit=260, tail=40)
    tests("interop2", 40, "tests/test_interop.py", lane=[3], gpus="3,2", limit=100)
    for i in range(4):
        bench(f"gemm_compiled{i}", 480, "gemm", "--heavy -k compiled", "gemm_h200_2026-11-29.json", limit=560)
    job("check", 60, REPORT + "check", limit=170, needs=PEERS, tail=26)
    job("warm_artifact", 80, REPORT.replace("export", "export W=1") + "warm_artifact", limit=150, needs=PEERS, after=["check"], tail=4)
    bench("artifact_longformer", 120, "paper_attention", "-k artifact-longformer --again", "paper_attention_h200.json", after=["warm_artifact"], limit=240)
    bench("batch8x128", 60, "paper_attention", "-k 8x128 --again", "paper_attention_h200.json", after=["warm_artifact"], limit=150)
    bench("decoding", 60, "attention", "-k decoding --again", "attention_h200.json", needs=PEERS, limit=140)
    bench("flashinfer", 150, "attention", "-k 'anchors or small' --again", "attention_h200.json", needs=PEERS, after=["check"], limit=330)
    bench("scaling_density", 60, "paper_scaling", "-k density --again", "paper_scaling_h200.json", needs=PEERS, after=["check"], limit=150)
    for i in range(2):
        bench(f"ablation{i}", 130, "paper_fusion", "-k ablation", "paper_fusion_h200.json", limit=280)
    bench("tuning", 150, "paper_tuning", "-k bench_tuning", "paper_tuning_h200.json", limit=280)
    bench("ragged", 70, "ragged", "", "ragged_h200.json", limit=160)
    bench("search", 90, "search", "", "search_h200.json", limit=200)
    bench("first_stack", 100, "paper_start", "-k first_stack --older", "paper_start_h200.json", limit=220)
    for i in range(3):
        bench(f"t5_{i}", 380, "paper_stacks", "-k t5", "paper_stacks_h200.json", limit=520)
    bench("minilm", 120, "engine", "", "engine_h200.json", needs=["minilm"], limit=220)
    for i in range(3):
        bench(f"older_{i}", 200, "paper_stacks", "--older -k '(16x2048 or 8x512) and not llama'", "paper_stacks_h200.json", limit=420)
    job("regret", 250, "timeout $((LIMIT-5)) python3 benchmarks/regret.py --out $OUT/regret.json --budget $((LIMIT-60)) --commit $(cat .gpu/commit) > $OUT/t.txt 2>&1; tail -25 $OUT/t.txt", limit=330, tail=25)
else:
    rest()
Path(__file__).with_name("jobs.json").write_text(json.dumps(jobs, indent=1))
print(len(jobs), sum(j["est"] for j in jobs), "s of one GPU")
