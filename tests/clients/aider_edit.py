"""`aider` on a real edit of a few files: the scripted target gives two of three back, and aider writes them. Once in one
answer, and once in answers that are cut at a limit and continued."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import base, equal, true

address = base()
BEFORE = {
    "greet.py": 'def greet(name):\n    return "Hi " + name\n',
    "words.py": 'HELLO = "Hi"\n',
    "main.py": 'from greet import greet\n\nprint(greet("Ada"))\n',
}
AFTER = {
    "greet.py": 'from words import HELLO\n\n\ndef greet(name):\n    return f"{HELLO}, {name}!"\n',
    "words.py": 'HELLO = "Hello"\n',
    "main.py": BEFORE["main.py"],
}


def edit(folder, *words):
    """Aider's own words after the edit; the files are compared."""
    for name, text in BEFORE.items():
        Path(folder, name).write_text(text)
    aider = Path(os.environ.get("AIDER", Path(sys.executable).parent / "aider"))
    flags = ["--model", "openai/org/scripted", "--openai-api-base", address + "/v1", "--openai-api-key", "none",
             "--edit-format", "whole", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings",
             "--analytics-disable", "--no-detect-urls", "--no-auto-lint", "--map-tokens", "0", "--no-show-release-notes"]
    command = [aider, *flags, *words, "--message", "Change the greeting to Hello.", *BEFORE]
    environment = {**os.environ, "HOME": folder, "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    shown = f"after\n{done.stdout}\n{done.stderr}"
    true(done.returncode == 0, f"aider ended with {done.returncode}, {shown}")
    equal({name: Path(folder, name).read_text() for name in BEFORE}, AFTER, f"the edited files, {shown}")


def whole(folder):
    edit(folder)


def continued(folder):
    """So few tokens an answer that it takes many; nothing of the text is lost between them. Without thinking, which aider
    would write into the text that it wants continued."""
    model = {"max_input_tokens": 8000, "max_output_tokens": 24, "litellm_provider": "openai", "mode": "chat",
             "supports_assistant_prefill": True}
    known = Path(folder, "known.json")
    known.write_text(json.dumps({"openai/org/scripted": model}))
    settings = Path(folder, "settings.yml")
    settings.write_text("- name: openai/org/scripted\n  edit_format: whole\n  extra_params:\n    max_tokens: 24\n"
                        "    extra_body:\n      enable_thinking: false\n")
    edit(folder, "--model-metadata-file", known, "--model-settings-file", settings)


for part in [whole, continued]:
    with tempfile.TemporaryDirectory() as folder:
        part(folder)
print("aider: the edit is made, in one answer and in many")
