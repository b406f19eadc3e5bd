"""What the client scripts share: the address to talk to, and checks that say what they found."""

import sys


def base():
    """The server's address, the scripts' only argument."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} http://HOST:PORT")
    return sys.argv[1].rstrip("/")


def equal(found, expected, what):
    if found != expected:
        sys.exit(f"{sys.argv[0]}: {what}: found {found!r}, expected {expected!r}")


def true(fact, what):
    if not fact:
        sys.exit(f"{sys.argv[0]}: {what}")


def raises(kind, call, what):
    """The exception of `kind` that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    except Exception as error:  # whatever else a client library raises
        sys.exit(f"{sys.argv[0]}: {what}: raised {error!r}, expected {kind.__name__}")
    sys.exit(f"{sys.argv[0]}: {what}: raised nothing, expected {kind.__name__}")


def identities(usage, timings, speculation):
    """The identities of the counters of one answer, in the shape of chats."""
    s, completion = speculation, usage["completion_tokens"]
    equal(s["first_n"] + s["accepted_n"] + s["bonus_n"] + s["forced_n"], completion, "tokens by who chose them")
    for counts in [s, *s["proposers"].values()]:
        equal(counts["drafted_n"], sum(counts[f"{c}_n"] for c in ["accepted", "rejected", "unreached", "discarded"]), "drafts by their fate")
        equal(counts["proposed_n"], counts["trimmed_n"] + counts["drafted_n"], "proposals")
    for name in ["proposed_n", "trimmed_n", "drafted_n", "accepted_n", "rejected_n", "unreached_n", "discarded_n"]:
        equal(s[name], sum(counts[name] for counts in s["proposers"].values()), f"{name} of all proposers")
    weighed = lambda histogram: (sum(histogram.values()), sum(int(k) * n for k, n in histogram.items()))
    equal(weighed(s["width_hist"]), (s["steps_n"], s["drafted_n"]), "windows by width")
    equal(weighed(s["accepted_hist"]), (s["windows_n"], s["accepted_n"]), "windows by what was accepted")
    equal(s["steps_n"], s["windows_n"] + s["plain_n"], "steps")
    positions = s["per_position"]
    equal(tuple(sum(p[name] for p in positions) for name in ["drafted", "accepted"]), (s["drafted_n"], s["accepted_n"]), "places")
    accepted = [p["accepted"] for p in positions]
    true(accepted == sorted(accepted, reverse=True), f"accepted by place: {accepted}")
    true(s["rejected_n"] <= s["windows_n"], "a rejection a window at most")
    true(usage["completion_tokens_details"]["reasoning_tokens"] <= completion, "thinking is a part")
    true(usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], "what is known is a part")
    equal(timings["cache_n"] + timings["prompt_n"], usage["prompt_tokens"], "the prompt, known and computed")
    equal(timings["predicted_n"], completion, "tokens of the times")
