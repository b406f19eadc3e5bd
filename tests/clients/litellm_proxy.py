"""A `litellm` proxy in front of two replicas, one of which is told to end under load: litellm_proxy.py ENGINE_SERVE LITELLM.

No request is lost that had no byte yet: the proxy asks the other replica. A stream that had begun ends as a whole, or with an
error that its reader is told; nothing that it said before was wrong."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from check import equal, true

SERVE, PROXY = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers, with a test of it."}]
WORKERS, REQUESTS, TOKENS = 6, 60, 400


@contextmanager
def replica():
    flags = ["--port", "0", "--parallel", "4", "--ctx-size", "1024", "--drain-timeout", "0.2"]
    process = subprocess.Popen([SERVE, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.stdout.readline().split()[-1], process
    finally:
        process.kill()
        process.wait(30)


@contextmanager
def proxy(addresses, folder):
    """The proxy's address and key."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    models = [{"model_name": "replicas", "litellm_params": {"model": "openai/any", "api_base": f"{address}/v1", "api_key": "none"}}
              for address in addresses]
    config = {"model_list": models, "router_settings": {"num_retries": 6, "retry_after": 0, "cooldown_time": 5},
              "litellm_settings": {"telemetry": False}}
    path = Path(folder, "config.json")
    path.write_text(json.dumps(config))
    key = "sk-" + secrets.token_hex(32)
    environment = {**os.environ, "HOME": folder, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [PROXY, "--config", path, "--host", "127.0.0.1", "--port", str(port)]
    with Path(folder, "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 180
        while True:
            true(process.poll() is None and time.monotonic() < deadline, f"the proxy does not start:\n{Path(folder, 'log').read_text()[-4000:]}")
            try:
                httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", key
    finally:
        process.terminate()
        process.wait(30)


def ask(address, key, stream):
    """Text, whether it is whole, and whether its reader was told of an error."""
    body = {"model": "replicas", "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": stream}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(timeout=120) as client:
        if not stream:
            answer = client.post(f"{address}/v1/chat/completions", json=body, headers=headers)
            if answer.status_code != 200:
                return f"status {answer.status_code}: {answer.text[:300]}", False, True
            return answer.json()["choices"][0]["message"]["content"], True, False
        text, whole, told = "", False, False
        try:
            with client.stream("POST", f"{address}/v1/chat/completions", json=body, headers=headers) as answer:
                told = answer.status_code != 200
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line[6:])
                    told |= "error" in event
                    for choice in event.get("choices", []):
                        text += choice["delta"].get("content") or ""
                        whole |= choice.get("finish_reason") is not None
        except httpx.HTTPError:
            told = True
        return text, whole, told


def running(replica):
    lines = httpx.get(f"{replica}/metrics", timeout=10).text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("engine_requests_running "))


def drained():
    with replica() as (first, going), replica() as (second, staying), tempfile.TemporaryDirectory() as folder:
        expected, whole, _ = ask(second, "none", False)
        true(whole and expected, "a replica answers by itself")
        with proxy([first, second], folder) as (address, key), ThreadPoolExecutor(WORKERS) as pool:
            equal(ask(address, key, False)[0], expected, "the proxy answers")
            answers = [pool.submit(ask, address, key, i % 2 == 0) for i in range(REQUESTS)]
            # In the middle of all of them, and of several of its own.
            while sum(answer.done() for answer in answers) < REQUESTS // 4 or running(first) < 2:
                true(not all(answer.done() for answer in answers), "the first replica never had two requests at once")
            going.send_signal(signal.SIGTERM)
            equal(going.wait(60), 0, "the exit code of the replica that ended")
            answers = [answer.result() for answer in answers]
        cut = 0
        for i, (text, whole, told) in enumerate(answers):
            kind = "stream" if i % 2 == 0 else "answer"
            if kind == "answer" or not text:
                equal((text, whole), (expected, True), f"{kind} {i}, which had no byte yet")
            elif whole and not told:
                equal(text, expected, f"{kind} {i}")
            else:
                true(told and expected.startswith(text), f"{kind} {i} ended silently or said something else: {text!r}")
                cut += 1
        true(running(second) == 0 and staying.poll() is None, "the other replica is at rest")
        print(f"litellm proxy: {REQUESTS} requests over two replicas, one of which ended; {cut} streams were cut and told so")


drained()
