"""Benchmarks of new runs in SOURCES replace those of the same name in BASE: python scratch/merge_results.py BASE SOURCE ... > OUT"""
import json, sys
base, *sources = [json.load(open(p)) for p in sys.argv[1:]]
repo = json.load(open("benchmarks/results/gemm_h200_2026-11-29.json"))
old = {json.dumps(r, sort_keys=True) for r in repo["runs"]}
for source in sources:
    fresh = [i for i, r in enumerate(source["runs"]) if json.dumps(r, sort_keys=True) not in old]
    where = {}
    for i in fresh:
        where[i] = len(base["runs"]); base["runs"].append(source["runs"][i])
    new = [dict(b, run=where[b["run"]]) for b in source["benchmarks"] if b["run"] in where]
    names = {b["fullname"] for b in new}
    base["benchmarks"] = [b for b in base["benchmarks"] if b["fullname"] not in names] + new
    gone = [dict(s, run=where[s["run"]]) for s in source["skipped"] if s["run"] in where]
    named = {s["fullname"] for s in gone} | names
    base["skipped"] = [s for s in base["skipped"] if s["fullname"] not in named] + gone
    print(len(new), "replaced of runs", [source["runs"][i].get("commit_info", {}).get("id", "")[:7] for i in fresh], file=sys.stderr)
json.dump(base, sys.stdout, indent=1)
