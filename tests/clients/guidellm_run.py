"""`guidellm` against a real model: guidellm_run.py http://HOST:PORT GUIDELLM TOKENIZER. Its figures are read clean, and are what
the server counts."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from check import equal, true

ADDRESS, GUIDELLM, TOKENIZER = sys.argv[1:]
REQUESTS, TOKENS = 8, 16


def generated():
    """Tokens that the server has generated so far."""
    with urllib.request.urlopen(f"{ADDRESS}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("engine_generation_tokens_total{"))


def main():
    before = generated()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [GUIDELLM, "run", "--backend", f"kind=openai_http,target={ADDRESS},request_format=/v1/chat/completions",
                   "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
                   "--tokenizer", f"kind=hf_auto,model={TOKENIZER}",
                   "--data", f"kind=synthetic_text,prompt_tokens=24,output_tokens={TOKENS}",
                   "--output", f"kind=json,path={report}", "--disable-console"]
        environment = {**os.environ, "HOME": folder, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        true(done.returncode == 0, f"guidellm ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    equal({kind: len(requests[kind]) for kind in ["successful", "errored"]}, {"successful": REQUESTS, "errored": 0}, "its requests")
    said = [request["output_metrics"]["text_tokens"] for request in requests["successful"]]
    equal(said, [TOKENS] * REQUESTS, "the tokens that it was told of")
    equal(generated() - before, REQUESTS * TOKENS, "the tokens that the server counts")
    print(f"guidellm: {REQUESTS} requests, all of them counted alike on both sides")


main()
