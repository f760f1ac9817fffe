"""Jobs on several GPUs of one machine that outlive a call: each worker (one a GPU, in a session of its own) takes the first job whose archives and predecessors are there.

    python3 pool.py take DIR           pieces NAME.k of archives; what is whole is unpacked (index.json in DIR: pieces of each archive, and where to)
    python3 pool.py start N SECONDS    N workers; no job begins whose estimate goes beyond SECONDS from now
    python3 pool.py end SECONDS        another end
    python3 pool.py wait SECONDS       until then, or until all is done; tells what ended since it was last told; results to $OUT/all.tar.xz

Jobs: jobs.json beside this file, copied at each call (a list of {name, needs, after, est, limit, lane, cmd}); the tree that they run in is the newest copy in /tmp/pool/tree.N.
"""
import json, os, shutil, subprocess, sys, time
from pathlib import Path

P = Path("/tmp/pool"); here = Path(__file__).parent
for d in ("parts", "have", "claims", "done", "out", "told"):
    (P / d).mkdir(parents=True, exist_ok=True)


def take(folder):
    index = json.loads((folder / "index.json").read_text())
    for piece in folder.iterdir():
        if piece.name != "index.json":
            shutil.copy(piece, P / "parts" / piece.name)
    for name, (pieces, to, kind) in index.items():
        files = [P / "parts" / f"{name}.{k}" for k in range(pieces)]
        if (P / "have" / name).exists() or not all(f.exists() for f in files):
            continue
        Path(to).mkdir(parents=True, exist_ok=True)
        text = " ".join(map(str, files))
        how = {"tar": f"cat {text} | tar -C {to} -x", "xz": f"cat {text} | tar -C {to} -xJ", "zip": f"cat {text} > /tmp/pool/x.zip && python3 -m zipfile -e /tmp/pool/x.zip {to}"}[kind]
        ok = subprocess.run(how, shell=True).returncode == 0
        print("unpacked" if ok else "NOT UNPACKED", name, flush=True)
        if ok:
            (P / "have" / name).touch()
            for f in files:
                f.unlink()


def jobs():
    return json.loads((P / "jobs.json").read_text())


def tree():
    return max(P.glob("tree.*"), key=lambda p: int(p.suffix[1:]))


def ends():
    return float((P / "end").read_text())


def worker(lane):
    while time.time() < (end := ends()) and not (P / "stop").exists():
        for job in jobs():
            name = job["name"]
            if (P / "claims" / name).exists() or lane not in job.get("lane", range(9)):
                continue
            if not all((P / "have" / n).exists() for n in job.get("needs", [])) or not all((P / "done" / n).exists() for n in job.get("after", [])):
                continue
            if time.time() + job["est"] > end:
                continue
            try:
                os.close(os.open(P / "claims" / name, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            began, out, at = time.time(), P / "out" / name, tree()
            out.mkdir(exist_ok=True)
            limit = min(job["limit"], end - began + 15)
            env = os.environ | {"OUT": str(out), "STOF_CACHE_DIR": f"/tmp/stof{lane}", "LIMIT": str(int(limit)), "JOB": name,
                                "CUDA_VISIBLE_DEVICES": job.get("gpus", str(lane)), "PYTHONUNBUFFERED": "1", "TRITON_CACHE_DIR": "/tmp/triton", "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
                                "PYTHONPATH": f"/tmp/site:{at}:{at}/benchmarks:{at}/scratch:{at}/.gpu/site"}
            with (out / "log.txt").open("w") as log:
                process = subprocess.Popen(["bash", "-c", job["cmd"]], cwd=at, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
                try:
                    code = process.wait(limit)
                except subprocess.TimeoutExpired:
                    code = "timeout"
                    for signal in (2, 9):
                        try:
                            os.killpg(process.pid, signal); process.wait(6)
                        except (ProcessLookupError, subprocess.TimeoutExpired):
                            pass
            line = f"{name}: lane {lane}, rc {code}, {time.time() - began:.0f} s of {job['est']}"
            (P / "done" / name).write_text(line)
            break
        else:
            time.sleep(1)


def told(name):
    log = (P / "out" / name / "log.txt").read_text(errors="replace").splitlines()
    tail = next((j.get("tail", 6) for j in jobs() if j["name"] == name), 6)
    return "\n".join("    " + line[:190] for line in log[-tail:])


def bundle():
    out = Path(os.environ.get("OUT", "/tmp/out")); out.mkdir(exist_ok=True)
    subprocess.run(f"cd /tmp && tar -c --exclude '*.cubin' pool/out pool/done $(ls -d engine_kept report 2>/dev/null) | xz -1 -T4 > {out}/all.part && mv {out}/all.part {out}/all.tar.xz", shell=True)


def wait(seconds):
    end, bundled = time.time() + seconds, time.time()
    while time.time() < end - 6:
        fresh = [p for p in (P / "done").iterdir() if not (P / "told" / p.name).exists()]
        for p in sorted(fresh, key=lambda p: p.stat().st_mtime):
            print(f"{time.time() - float((P / 'began').read_text()):5.0f} s {p.read_text()}\n{told(p.name)}", flush=True)
            (P / "told" / p.name).touch()
        if all((P / "done" / j["name"]).exists() for j in jobs()):
            break
        time.sleep(1)
    bundle()
    running = {p.name for p in (P / "claims").iterdir()} - {p.name for p in (P / "done").iterdir()}
    print(f"{time.time() - float((P / 'began').read_text()):5.0f} s; running {sorted(running)}; waiting {[j['name'] for j in jobs() if not (P / 'claims' / j['name']).exists()]}")


def main(what, *args):
    if what != "worker" and (here / "jobs.json").exists():
        shutil.copy(here / "jobs.json", P / "jobs.part"); os.replace(P / "jobs.part", P / "jobs.json")
    if what == "take":
        take(Path(args[0]))
    elif what == "tree":  # a copy of the tree that jobs begun from now on run in
        shutil.copytree(".", P / f"tree.{len(list(P.glob('tree.*')))}", symlinks=True, ignore=shutil.ignore_patterns("parts"))
    elif what == "start":
        (P / "began").write_text(str(time.time()))
        (P / "end").write_text(str(time.time() + float(args[1])))
        Path("/tmp/models").mkdir(exist_ok=True)
        for lane in range(int(args[0])):
            Path(f"/tmp/stof{lane}").mkdir(exist_ok=True)
            if not Path(f"/tmp/stof{lane}/models").exists():
                os.symlink("/tmp/models", f"/tmp/stof{lane}/models")
            subprocess.Popen([sys.executable, __file__.replace(str(here), str(tree() / "scratch/lanes")), "worker", str(lane)], cwd=tree(), start_new_session=True,
                             stdout=(P / f"worker{lane}.txt").open("w"), stderr=subprocess.STDOUT)
    elif what == "end":  # seconds from now
        (P / "end").write_text(str(time.time() + float(args[0])))
    elif what == "worker":
        worker(int(args[0]))
    elif what == "wait":
        wait(float(args[0]))


main(*sys.argv[1:])
