"""Runs every client script against this repository's servers: `python3 tests/clients/run.py`.

Builds the programs, makes virtual environments under .cache/clients, starts the scripted target, the built-in model and,
where the tests have fetched it, SmolLM2, and runs the scripts one after the other; the page in Chromium, where there is
one. With REQUIRE_MODELS=1 or REQUIRE_BROWSER=1 a missing model or browser is a failure. Ends with 1 if anything fails."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "clients"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"


def run(*command, **more):
    subprocess.run([str(word) for word in command], check=True, **more)


def environment(name, requirements):
    """A virtual environment with these requirements, made once."""
    place = CACHE / name
    mark = place / "requirements"
    wanted = requirements.read_text()
    if not mark.exists() or mark.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", place)
        run(place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
        mark.write_text(wanted)
    return place / "bin"


def node():
    """A folder with the packages of package.json, made once."""
    place = CACHE / "node"
    place.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_text()
    mark = place / "package.json"
    if not mark.exists() or mark.read_text() != wanted or not (place / "node_modules/openai").exists():
        mark.write_text(wanted)
        run("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=place)
    return place


@contextmanager
def server(*command):
    """A server on a free port; its address is the last word of the first line that it prints."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline().split()
        if not line:
            sys.exit(f"{command[0]} printed no address")
        yield line[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def smollm2():
    """The model that the tests fetch, if they have."""
    found = sorted((ROOT / ".cache").glob("*.gguf"))
    return found[0] if found else None


def main():
    run("cargo", "build", "--locked", "-p", "engine-tests", "--bin", "scripted", "-p", "engine-bin", "--bin", "engine-serve", cwd=ROOT)
    python = environment("python", HERE / "requirements.txt") / "python"
    aider = environment("aider", HERE / "requirements-aider.txt") / "aider"
    modules = node()
    failed = []

    def script(name, address, *words, more=(), **options):
        done = subprocess.run([*words, HERE / name, address, *more], cwd=CACHE, **options)
        if done.returncode != 0:
            failed.append(f"{name} at {address}")

    with server(TARGET / "scripted", HERE / "rules.json") as address:
        for name in ["openai_chat.py", "openai_responses.py", "anthropic_sdk.py", "litellm_all.py", "llm_cli.py"]:
            script(name, address, python)
        script("aider_edit.py", address, python, env={**os.environ, "AIDER": str(aider)})
        script("curl.sh", address, "bash")
        # Modules are looked for beside the script.
        (modules / "openai_node.mjs").write_text((HERE / "openai_node.mjs").read_text())
        done = subprocess.run(["node", modules / "openai_node.mjs", address])
        failed.extend(["openai_node.mjs"] if done.returncode else [])
    models = [("built-in", [])]
    if smollm2():
        models.append(("SmolLM2", ["--model", smollm2()]))
    elif os.environ.get("REQUIRE_MODELS") == "1":
        failed.append("SmolLM2 has not been fetched; `cargo test` fetches it")
    else:
        print("clients: SmolLM2 has not been fetched, its protocol run is skipped")
    for name, flags in models:
        with server(TARGET / "engine-serve", "--port", "0", *flags) as address:
            script("protocol.py", address, python)
    browser = shutil.which("chromium")
    if browser:
        with server(TARGET / "engine-serve", "--port", "0") as address:
            script("page.py", address, python, more=["--browser", browser])
    elif os.environ.get("REQUIRE_BROWSER") == "1":
        failed.append("chromium is not on PATH, and the page was to be opened in it")
    else:
        print("clients: no chromium, the page is not opened")
    # The description, by a tool that makes requests of it: no 500, no answer that it does not allow.
    with server(TARGET / "engine-serve", "--port", "0", "--ctx-size", "1024") as address:
        checks = "status_code_conformance,content_type_conformance,response_schema_conformance"
        # What is not implemented answers 501, and that is what it has to.
        for tagged, checks in [("--exclude-tag", checks + ",not_a_server_error"), ("--include-tag", checks)]:
            done = subprocess.run([python.parent / "schemathesis", "run", f"{address}/openapi.json", "--max-examples", "20",
                                   "--phases", "examples,coverage,fuzzing", "--seed", "1", "--request-timeout", "60",
                                   tagged, "not implemented", "--checks", checks], cwd=CACHE)
            failed.extend([f"schemathesis {tagged}"] if done.returncode else [])
    print("clients: " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return bool(failed)


sys.exit(main())
