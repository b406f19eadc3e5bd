"""`aider` on a real edit: the scripted target gives the whole file back, and aider writes it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import base, equal, true

address = base()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "greet.py")
    path.write_text('def greet(name):\n    return "Hi " + name\n')
    aider = Path(os.environ.get("AIDER", Path(sys.executable).parent / "aider"))
    flags = ["--model", "openai/org/scripted", "--openai-api-base", address + "/v1", "--openai-api-key", "none",
             "--edit-format", "whole", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings",
             "--analytics-disable", "--no-detect-urls", "--no-auto-lint", "--map-tokens", "0", "--no-show-release-notes"]
    command = [aider, *flags, "--message", "Change the greeting to Hello.", "greet.py"]
    environment = {**os.environ, "HOME": folder, "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    true(done.returncode == 0, f"aider ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    equal(path.read_text(), 'def greet(name):\n    return f"Hello, {name}!"\n', f"the edited file, after\n{done.stdout}\n{done.stderr}")
print("aider: the edit is made")
