"""Runs every client script against this repository's servers: `python3 tests/clients/run.py [SCRIPT..]`, all of them or those
that are named.

Builds the programs, makes virtual environments under .cache/clients, starts the scripted target, the built-in model and,
where the tests have fetched it, SmolLM2, and runs the scripts one after the other; before and after each, the server's
counters are read and compared. page.py opens the page in the Chromium that is on PATH. With REQUIRE_MODELS=1 a missing model
is a failure, with REQUIRE_BROWSER=1 a missing Chromium; else what needs them is left out, and that is said. guidellm, which
brings gigabytes with it, runs where it is named. Ends with 1 if anything fails."""

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
SERVE = TARGET / "engine-serve"
WANTED = sys.argv[1:]
# No script takes longer than this on a slow machine; one that hangs fails.
LONGEST = 900
failed = []


def run(*command, **more):
    subprocess.run([str(word) for word in command], check=True, **more)


def environment(name):
    """The programs of a virtual environment with its own requirements, made once."""
    place = CACHE / name
    mark = place / "requirements"
    requirements = HERE / f"requirements-{name}.txt"
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


def call(name, words, **more):
    """Runs a command; what fails is remembered by `name`."""
    try:
        code = subprocess.run([str(word) for word in words], timeout=LONGEST, **more).returncode
    except subprocess.TimeoutExpired:
        code = "no end"
    if code != 0:
        failed.append(f"{name} ({code})")


def wanted(name):
    return not WANTED or name in WANTED


def smollm2():
    """The model that the tests fetch, if they have."""
    found = sorted((ROOT / ".cache").glob("*.gguf"))
    return found[0] if found else None


def main():
    unknown = [name for name in WANTED if not (HERE / name).exists() and name != "schemathesis"]
    if unknown:
        sys.exit(f"no such scripts: {', '.join(unknown)}")
    run("cargo", "build", "--locked", "-p", "engine-tests", "--bin", "scripted", "-p", "engine-bin", "--bin", "engine-serve", cwd=ROOT)
    python = environment("python") / "python"
    states = tempfile.TemporaryDirectory()

    def script(name, address, *words, interpreter=python, **more):
        """A script against a server, and the server's counters before and after it."""
        if not wanted(name):
            return
        state = Path(states.name, address.rsplit(":", 1)[-1])
        if not state.exists():
            call("metrics.py", [python, HERE / "metrics.py", address, state])
        call(f"{name} at {address}", [interpreter, HERE / name, address, *words], cwd=CACHE, **more)
        call(f"metrics.py behind {name}", [python, HERE / "metrics.py", address, state])

    with server(TARGET / "scripted", HERE / "rules.json") as address:
        for name in ["openai_chat.py", "openai_responses.py", "anthropic_sdk.py", "litellm_all.py", "llm_cli.py"]:
            script(name, address)
        if wanted("aider_edit.py"):
            script("aider_edit.py", address, env={**os.environ, "AIDER": str(environment("aider") / "aider")})
        script("curl.sh", address, interpreter="bash")
        if wanted("openai_node.mjs"):
            # Modules are looked for beside the script.
            modules = node()
            (modules / "openai_node.mjs").write_text((HERE / "openai_node.mjs").read_text())
            call("openai_node.mjs", ["node", modules / "openai_node.mjs", address])
    for style in ["hermes", "llama3", "nemotron2"]:
        with server(TARGET / "scripted", HERE / "rules.json", style) as address:
            script("openai_chat.py", address)
    models = [("built-in", [])]
    if smollm2():
        models.append(("SmolLM2", ["--model", smollm2()]))
    elif os.environ.get("REQUIRE_MODELS") == "1":
        failed.append("SmolLM2 has not been fetched; `cargo test` fetches it")
    else:
        print("clients: SmolLM2 has not been fetched, its protocol run is skipped")
    for name, flags in models:
        with server(SERVE, "--port", "0", *flags) as address:
            script("protocol.py", address)
    small = ["--parallel", "1", "--queue-max", "1", "--http-max-body", "200KiB", "--queue-bytes", "64MiB", "--api-key", "sesame"]
    with server(SERVE, "--port", "0", "--ctx-size", "4096", *small) as address:
        script("limits.py", address)
    if "guidellm_run.py" in WANTED:
        tiny = ROOT / "tests/data/qwen35-tiny"
        with server(SERVE, "--port", "0", "--ctx-size", "512", "--model", tiny / "qwen35-tiny-Q8_0.gguf") as address:
            script("guidellm_run.py", address, environment("guidellm") / "guidellm", tiny / "hf")
    if wanted("litellm_proxy.py"):
        call("litellm_proxy.py", [python, HERE / "litellm_proxy.py", SERVE, environment("proxy") / "litellm"])
    if wanted("page.py"):
        browser = shutil.which("chromium")
        if browser:
            # No machine fills such a context while the page is looked at.
            with server(SERVE, "--port", "0", "--ctx-size", "500000", "--parallel", "2") as address:
                script("page.py", address, "--browser", browser)
        elif "page.py" in WANTED or os.environ.get("REQUIRE_BROWSER") == "1":
            failed.append("page.py: there is no chromium on PATH")
        else:
            print("clients: there is no chromium on PATH, the page is not opened")
    if wanted("schemathesis"):
        # The description, by a tool that makes requests of it: no 500, no answer that it does not allow.
        with server(SERVE, "--port", "0", "--ctx-size", "1024") as address:
            checks = "status_code_conformance,content_type_conformance,response_schema_conformance"
            # What is not implemented answers 501, and that is what it has to.
            for tagged, checks in [("--exclude-tag", checks + ",not_a_server_error"), ("--include-tag", checks)]:
                call(f"schemathesis {tagged}", [python.parent / "schemathesis", "run", f"{address}/openapi.json",
                                                "--max-examples", "20", "--phases", "examples,coverage,fuzzing", "--seed", "1",
                                                "--request-timeout", "60", tagged, "not implemented", "--checks", checks],
                     cwd=CACHE)
    print("clients: " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return bool(failed)


sys.exit(main())
