"""`/metrics` through a strict parser: metrics.py http://HOST:PORT STATE. Counters never go back behind those of STATE, a file
that is written anew; totals agree with each other."""

import json
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from check import equal, true

ADDRESS, STATE = sys.argv[1].rstrip("/"), Path(sys.argv[2])
SERIES_MAX = 1500


def families(text):
    """The page, by name of the family; what a lenient parser lets pass is looked at line by line."""
    helped, typed, current, seen = set(), {}, None, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            true(name not in helped, f"{name} is explained twice")
            helped.add(name)
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:]
            true(name in helped and name not in typed, f"{name} has its type once, behind its explanation")
            typed[name], current = kind, name
        else:
            series = line.rsplit(" ", 1)[0]
            true(series.startswith(current) and series not in seen, f"{series} stands once, with its family {current}")
            seen.add(series)
    true(text.endswith("\n") and len(seen) <= SERIES_MAX, f"{len(seen)} series")
    return {family.name: family for family in text_string_to_metric_families(text)}


def main():
    with urllib.request.urlopen(f"{ADDRESS}/metrics", timeout=30) as answer:
        equal(answer.headers["content-type"].split(";")[0], "text/plain", "the type of the page")
        page = families(answer.read().decode())
    total = lambda name, **labels: sum(
        s.value for s in page[name].samples if not s.name.endswith("_created") and labels.items() <= s.labels.items())
    for name in ["vllm:num_requests_running", "vllm:generation_tokens", "llamacpp:tokens_predicted", "engine_generation_tokens"]:
        true(name in page, f"there is {name}")
    equal(total("vllm:generation_tokens"), total("engine_generation_tokens"), "generated tokens under both names")
    equal(total("llamacpp:tokens_predicted"), total("engine_generation_tokens"), "generated tokens under the third name")
    accepted = total("engine_generation_tokens", source="mtp") + total("engine_generation_tokens", source="suffix")
    equal(total("engine_spec_tokens", **{"class": "accepted"}), accepted, "accepted drafts")
    equal(total("engine_spec_position", **{"class": "accepted"}), accepted, "accepted drafts by place")
    drafted = sum(total("engine_spec_tokens", **{"class": c}) for c in ["accepted", "rejected", "unreached", "discarded"])
    equal(total("vllm:spec_decode_num_draft_tokens"), drafted, "drafts under both names")
    counters = {json.dumps([s.name, s.labels], sort_keys=True): s.value for family in page.values()
                if family.type in ("counter", "histogram") for s in family.samples}
    before = json.loads(STATE.read_text()) if STATE.exists() else {}
    for series, value in before.items():
        true(counters.get(series, -1) >= value, f"{series} went from {value} to {counters.get(series)}")
    STATE.write_text(json.dumps(counters))


main()
