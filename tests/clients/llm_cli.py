"""The `llm` command against the scripted target: a stream, a whole answer, a schema, a tool, and what it logs of them."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from check import base, equal, true

address = base()
TEXT = "Hello, wörld. This is STOP the end."


def usage(prompt):
    """What the server counts of the same prompt."""
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()
    with urllib.request.urlopen(f"{address}/v1/chat/completions", body, timeout=60) as answer:
        counted = json.load(answer)["usage"]
    return counted["prompt_tokens"], counted["completion_tokens"]


def setup(folder):
    model = {"model_id": "scripted", "model_name": "org/scripted", "api_base": address + "/v1", "supports_tools": True,
             "supports_schema": True, "can_stream": True}
    lines = [f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in model.items()]
    Path(folder, "extra-openai-models.yaml").write_text("-" + "\n".join(lines)[1:] + "\n")
    environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none", "PYTHONUTF8": "1"}

    def llm(*words):
        command = [Path(sys.executable).parent / "llm", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        true(done.returncode == 0, f"llm {words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    return llm


def texts(llm):
    counted = usage("Say it plainly")
    for words in [[], ["--no-stream"]]:
        equal(llm("-m", "scripted", *words, "Say it plainly"), TEXT, f"an answer, {words}")
        (logged,) = json.loads(llm("logs", "--json", "-n", "1"))
        equal((logged["input_tokens"], logged["output_tokens"]), counted, f"the tokens that it logs, {words}")


def schemas(llm):
    equal(json.loads(llm("-m", "scripted", "--schema", "name str, age int", "Who is it")), {"name": "Ada", "age": 36}, "an answer of a schema")


def tools(llm):
    functions = "def add(a: int, b: int) -> str:\n    return f'the sum is {a + b}'\n\ndef shout(text: str) -> str:\n    return text.upper()\n"
    answer = llm("-m", "scripted", "--functions", functions, "Use both tools")
    true(answer.endswith("The sum is 5."), f"the end of a tool loop: {answer!r}")


with tempfile.TemporaryDirectory() as folder:
    llm = setup(folder)
    for part in [texts, schemas, tools]:
        part(llm)
print("llm: streams, answers, schemas, tools and logs are as they should be")
