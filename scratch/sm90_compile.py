"""Compile every kernel of Hopper's attention for sm_90a, and say which spill or are serialised.

    PYTHONPATH=$PWD python scratch/sm90_compile.py [LIBNVRTC] [main|terms|mixed ...] [FIRST STEP: every STEP-th]    no GPU; about 4 s a kernel of a core

main: SM90_CONFIGS, with halves and with packed keys, both dtypes; terms: with what modifies scores; mixed: pairs of head dims that are not in the list.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stof_cupy.jit import nvrtc
from stof_cupy.jit.attention_sm90 import (
    SM90_CONFIGS,
    SM90_DIMS,
    attention_sm90,
    attention_sm90_combine,
)
from stof_cupy.jit.compile import compile_cubin

CAP, ALIBI, REL = ("Softcap",), ("Alibi",), ("Relative",)
ADD = tuple((f"Additive<{t}>",) for t in ("stof::f16", "stof::bf16", "float"))
TERMS = (CAP, ALIBI, REL, *ADD, CAP + ALIBI, CAP + ADD[2], ALIBI + ADD[2], CAP + ALIBI + ADD[2], REL + ADD[2], CAP + REL)


def shapes(part):
    if part == "main":
        packed = [replace(c, packed=True, halves=False) for c in SM90_CONFIGS]
        halves = [replace(c, halves=not c.halves) for c in SM90_CONFIGS]
        return [*SM90_CONFIGS, *halves, *packed]
    if part == "terms":
        made = [c.roomy(terms) for c in SM90_CONFIGS for terms in TERMS]
        return [*made, *(replace(c, packed=True) for c in made if c.scores in (CAP, ALIBI))]
    pairs = [(a, b) for a in SM90_DIMS for b in SM90_DIMS if (a, b) not in {(c.dim_qk, c.dim_v) for c in SM90_CONFIGS}]
    return [replace(c, dim_qk=a, dim_v=b) for a, b in pairs for c in SM90_CONFIGS if c.dim_qk == c.dim_v == max(a, b)]


def main(arguments):
    path = Path(arguments.pop(0)) if arguments and "/" in arguments[0] else None
    library = nvrtc.load(path)
    only = [int(x) for x in arguments if x.isdigit()]
    arguments = [x for x in arguments if not x.isdigit()]
    found = [s for part in arguments or ("main", "terms", "mixed") for s in shapes(part)]
    found = [s for s in dict.fromkeys(found) if s.fault() is None]
    found = found[only[0] :: only[1]] if only else found
    specs = [attention_sm90(t, s) for s in found for t in (("bfloat16", "float16") if not s.scores else ("bfloat16",))]
    specs += [attention_sm90_combine("float16", d, m, w) for d in SM90_DIMS for m in (64, 128, 192) for w in (1, 4)]
    print("NVRTC", library.version, len(specs), "kernels", flush=True)
    start, bad, done = time.time(), 0, 0

    def one(spec):
        nonlocal bad, done
        if spec.nvrtc > library.version:
            return
        cubin = compile_cubin(spec, "90a", library, strict=False)
        done += 1
        notes = {line.strip()[:110] for line in cubin.log.splitlines() if "C75" in line}
        if done % 10 == 0:
            print(f"{done} in {time.time() - start:.0f} s", flush=True)
        if cubin.spill_bytes or notes:
            bad += 1
            print("BAD", spec.name, cubin.spill_bytes, "B of spills", *notes, flush=True)

    with ThreadPoolExecutor(1) as pool:
        list(pool.map(one, specs))
    print(f"{bad} bad of {len(specs)} in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
