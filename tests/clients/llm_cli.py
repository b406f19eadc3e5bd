"""The `llm` command against the scripted target: a stream, a whole answer, a tool."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import base, equal, true

address = base()
with tempfile.TemporaryDirectory() as folder:
    model = {"model_id": "scripted", "model_name": "org/scripted", "api_base": address + "/v1", "supports_tools": True,
             "supports_schema": True, "can_stream": True}
    lines = [f"- {name}: {str(value).lower() if isinstance(value, bool) else value}" if i == 0 else
             f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for i, (name, value) in enumerate(model.items())]
    Path(folder, "extra-openai-models.yaml").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none", "PYTHONUTF8": "1"}

    def llm(*words):
        command = [Path(sys.executable).parent / "llm", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        true(done.returncode == 0, f"llm {words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    text = "Hello, wörld. This is STOP the end."
    equal(llm("-m", "scripted", "Say it plainly"), text, "a stream")
    equal(llm("-m", "scripted", "--no-stream", "Say it plainly"), text, "a whole answer")
    functions = "def add(a: int, b: int) -> str:\n    return f'the sum is {a + b}'\n\ndef shout(text: str) -> str:\n    return text.upper()\n"
    answer = llm("-m", "scripted", "--functions", functions, "Use both tools")
    true(answer.endswith("The sum is 5."), f"the end of a tool loop: {answer!r}")
print("llm: streams, answers and tools are as they should be")
