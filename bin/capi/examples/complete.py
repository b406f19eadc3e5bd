"""Completes a prompt as JSON and as token ids, then cancels a third request half way.

    python3 complete.py [CONFIG [PROMPT]]

CONFIG is the JSON that a handle is opened with, without it the built-in model. Prints a line of token ids for each of
the first two; they are the same.
"""

import json
import os
import sys

import slipstream as s

PROMPT = "def total_price(items):\n    result = 0\n"
SETTINGS = {"max_tokens": 24, "temperature": 0, "seed": 7}


def complete(engine, request):
    """Ids of a request."""
    ids = []
    for event in engine.events(request):
        ids += event.tokens
        if event.kind == s.ERROR:
            raise SystemExit(event.json)
    return ids


def main(config="", prompt=PROMPT):
    s.preflight(config)
    with s.Engine(config) as engine:
        print("about", json.dumps(engine.about()))
        streamed = {"prompt": prompt, "stream": True, "return_token_ids": True, **SETTINGS}
        print("json", *complete(engine, engine.submit(s.COMPLETIONS, streamed)))

        text = engine.submit(s.TOKENIZE, {"content": prompt, "add_special": True})
        (answer,) = engine.events(text)
        ids = json.loads(answer.json)["tokens"]
        print("tokens", *complete(engine, engine.submit_tokens(ids, SETTINGS)))

        endless = engine.submit_tokens(ids, {"max_tokens": 4000, "ignore_eos": True})
        engine.poll(endless)
        engine.cancel(endless)
        (cancelled,) = engine.events(endless)
        print("cancelled", cancelled.kind == s.CANCELLED)

        # A child that was forked has none of the threads.
        child = os.fork()
        if child == 0:
            try:
                engine.stats()
            except s.Error as error:
                os._exit(0 if error.status == s.HANDLE else 1)
            os._exit(1)
        print("forked", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
        stale = engine.handle
        print("stats", engine.stats().requests, engine.stats().completion_tokens)
    print("stale", s.load().slipstream_close(stale) == s.HANDLE)
    try:
        s.Engine({"model": "no-such-model.gguf"})
    except s.Error as error:
        print("refused", error.status, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
