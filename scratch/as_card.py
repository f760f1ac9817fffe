"""Copies results files as another card's, with other numbers: python scratch/as_card.py DIR FILE.json ...   (to try the report; never to be committed)

Every machine_info's GPU becomes an H200, the date a day later, every time 0.8 to 0.95 of it, by a hash of its name.
"""
import json, sys, zlib
from pathlib import Path

NAME = "NVIDIA H200"


def card(stamp):
    if "gpu" in stamp.get("machine_info", {}):
        stamp["machine_info"]["gpu"] |= {"name": NAME, "driver": "590.10"}
    stamp["datetime"] = stamp["datetime"].replace("11-28", "11-29")


def main(out, *files):
    for name in files:
        content = json.loads(Path(name).read_text())
        for stamp in (content, *content.get("runs", [])):
            card(stamp)
        for each in content["benchmarks"]:
            factor = 0.8 + 0.15 * (zlib.crc32(each["fullname"].encode()) % 1000) / 1000
            stats, info = each["stats"], each["extra_info"]
            for key in ("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3"):
                if key in stats:
                    stats[key] *= factor
            if "data" in stats:
                stats["data"] = [x * factor for x in stats["data"]]
            for key in ("device_p20_ms", "device_p50_ms", "device_p80_ms"):
                if key in info:
                    info[key] *= factor
        Path(out, Path(name).name.replace("h100_2026-11-28", "h200").replace("_h100", "_h200")).write_text(json.dumps(content))


main(*sys.argv[1:])
