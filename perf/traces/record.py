#!/usr/bin/env python3
"""Records the sessions of this folder: a scripted client talks with the built-in model under `engine-serve --record`.

Standard library alone. Every session is a short list of things a person, or a tool on its behalf, says; the model's own
answers go between them, so that prompts grow as they do in a tool loop. Decoding is greedy: the same program and model
write the same texts and tokens again.
"""

import argparse
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

CONFIG = """{
  "name": "worker-cell",
  "server": {
    "host": "localhost",
    "port": 8080,
    "max_batch": 16
  },
  "queue": {
    "limit": 256,
    "path": "queue.log"
  },
  "enable_cache": true
}"""

CODE = """def load_config(path):
    with open(path) as handle:
        data = json.load(handle)
    return data


def save_config(path, data):
    with open(path, 'w') as handle:
        json.dump(data, handle, indent=2)"""

# `{answer}` stands for what the model said last, as a tool that wrote it to a file would print it back.
SESSIONS = {
    "config": [
        f"Set `server.max_batch` to `64` in this config.\n```json\n{CONFIG}\n```",
        "config.json was written:\n{answer}\nNow set `queue.limit` to `512` in it.",
        "config.json was written:\n{answer}\nNow set `server.port` to `9090` in it.",
    ],
    "repeat": [
        f"Repeat this file without changes.\n```python\n{CODE}\n```",
        "cat config.py\n{answer}\nRepeat this file without changes.",
    ],
    "rename": [
        f"Rename `handle` to `stream` everywhere.\n```python\n{CODE}\n```",
        "config.py was written:\n{answer}\nRename `data` to `settings` everywhere.",
    ],
    "prose": ["What is a suffix index good for?", "And when is it of no use?"],
}

# Longest answer, in tokens.
ANSWER_TOKENS = 200


def ask(base, messages):
    """The model's answer to `messages`."""
    body = {"messages": messages, "temperature": 0, "seed": 0, "max_tokens": ANSWER_TOKENS}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def play(base, turns):
    """Runs one session."""
    messages, answer = [], ""
    for turn in turns:
        messages.append({"role": "user", "content": turn.replace("{answer}", answer)})
        answer = ask(base, messages)
        messages.append({"role": "assistant", "content": answer})


def main():
    """Starts a server for each session, so that each has a file of its own, and names the file after it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", default="target/release/engine-serve", help="the server's program")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the recordings go")
    args = parser.parse_args()
    for name, turns in SESSIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [args.serve, "--record", folder, "--port", "0", "--parallel", "1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                try:
                    for line in server.stdout:
                        if line.startswith("listening on "):
                            play(line.split()[-1], turns)
                            break
                finally:
                    server.terminate()
            (recording,) = Path(folder).glob("*.jsonl")
            target = args.out / f"{name}.jsonl"
            target.write_bytes(recording.read_bytes())
            print(f"{target}: {len(recording.read_text().splitlines())} requests, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
