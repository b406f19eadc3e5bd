#!/usr/bin/env python3
"""Measures this engine and llama.cpp on one GGUF file, interleaved, and writes a record.

Every round runs each contender once, in turn, so that a machine that drifts drifts for all. The record keeps the
median and the best of the rounds and the ratio to the best peer configuration, metric by metric. See README.md.
"""

import argparse
import csv
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
# Which of llama.cpp's switches pay depends on quantisation and rows; all are tried, the best one is the bar.
PEER_CONFIGS = [("on", "on"), ("on", "off"), ("off", "on"), ("off", "off")]


def output(command):
    """The text a command prints; ends the program with its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def contenders(args):
    """Names and commands. Ours first; both kinds print the same schema."""
    shape = ["--model", args.model, "--threads", str(args.threads), "--prefill", str(args.prefill)]
    shape += ["--decode", str(args.decode), "--rows", args.rows]
    found = []
    if not args.peer_only:
        found.append(("slipstream", [args.ours, "speed", *shape, *args.ours_flag, "--json"]))
    for flash, repack in PEER_CONFIGS:
        switches = ["--flash", flash, "--repack", repack, "--kv-type", args.kv_type]
        command = [args.peer_python, str(HERE / "llamacpp.py"), *shape, *switches]
        found.append((f"llama.cpp flash={flash} repack={repack}", command))
    return found


def metrics(result):
    """The figures of one run, flat: name -> (value, unit)."""
    flat = {"decode": (result["decode_tok_s"], "tok/s"), "prefill": (result["prefill_tok_s"], "tok/s")}
    for rows, milliseconds in result["rows_ms"].items():
        flat[f"step of {rows} rows"] = (milliseconds, "ms")
    return flat


def summarise(runs):
    """One line per contender and metric from `runs`: name -> list of results. `ratio` above 1 beats the best peer."""
    lines = []
    for name, results in runs.items():
        for metric, (_, unit) in metrics(results[0]).items():
            values = [metrics(result)[metric][0] for result in results]
            best = max(values) if unit == "tok/s" else min(values)
            lines.append({"engine": name, "metric": metric, "unit": unit, "median": statistics.median(values),
                          "best": best, "worst": min(values) if unit == "tok/s" else max(values)})
    for line in lines:
        peers = [other for other in lines if other["metric"] == line["metric"] and other["engine"] != "slipstream"]
        for figure in ("median", "best"):
            if line["unit"] == "tok/s":
                ratio = line[figure] / max(peer[figure] for peer in peers)
            else:
                ratio = min(peer[figure] for peer in peers) / line[figure]
            line[f"{figure}_ratio"] = ratio
    return lines


def write_record(args, facts, lines, runs):
    """Writes CSV and JSON beside each other and returns their common stem."""
    slug = re.sub(r"[^a-z0-9]+", "-", facts["cpu"].lower()).strip("-")
    label = f"{facts['date']}-{slug}-{facts['cores']}c-{args.label}-t{args.threads}"
    stem = Path(args.out) / label
    stem.parent.mkdir(parents=True, exist_ok=True)
    constant = ["date", "cpu", "cores", "threads", "commit", "peer", "model"]
    columns = ["engine", "metric", "unit", "median", "best", "worst", "median_ratio", "best_ratio"]
    with open(f"{stem}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(constant + columns)
        for line in lines:
            figures = [f"{line[key]:.4g}" if isinstance(line[key], float) else line[key] for key in columns]
            writer.writerow([facts[key] for key in constant] + figures)
    with open(f"{stem}.json", "w", encoding="utf-8") as file:
        json.dump({**facts, "lines": lines, "runs": runs}, file, indent=1)
        file.write("\n")
    return stem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file that both engines load")
    parser.add_argument("--peer-python", required=True, help="interpreter that has llama-cpp-python (README.md)")
    parser.add_argument("--ours", default=str(TOP / "target/release/engine-bench"), help="our engine-bench")
    parser.add_argument("--ours-flag", action="append", default=[], help="a further flag for `engine-bench speed`")
    parser.add_argument("--peer-only", action="store_true", help="measure the peer alone")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rows", default="1,4,8,16,32")
    parser.add_argument("--kv-type", default="f16", choices=["f32", "f16", "q8_0"], help="the peer's cache (f16)")
    parser.add_argument("--label", default="smollm2", help="last words of the record's name")
    parser.add_argument("--out", default=str(TOP / "perf/records"))
    args = parser.parse_args()
    args.model = str(Path(args.model).resolve())
    if not args.peer_only and not Path(args.ours).is_file():
        parser.error(f"{args.ours} does not exist; cargo build --release, or pass --peer-only")

    runs = {name: [] for name, _ in contenders(args)}
    load_before = os.getloadavg()[0]
    for turn in range(args.rounds):
        for name, command in contenders(args):
            runs[name].append(json.loads(output(command)))
            print(f"round {turn + 1} of {args.rounds}: {name}", file=sys.stderr)
    peer = next(results[0] for name, results in runs.items() if name != "slipstream")
    facts = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "load_before": load_before,
        "commit": output(["git", "describe", "--always", "--dirty"]).strip(),
        "peer": peer["revision"],
        "peer_system": peer["system"],
        "model": Path(args.model).name,
        "shape": {"prefill": args.prefill, "decode": args.decode, "rows": args.rows, "rounds": args.rounds,
                  "peer_kv_type": args.kv_type, "ours_flags": args.ours_flag},
    }
    lines = summarise(runs)
    stem = write_record(args, facts, lines, runs)
    for line in lines:
        print(f"{line['engine']:34} {line['metric']:16} {line['median']:9.2f} {line['unit']:5}"
              f"  {line['median_ratio']:.3f} of the best peer")
    print(f"{stem}.csv")


if __name__ == "__main__":
    main()
