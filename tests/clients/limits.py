"""Both SDKs against a server with a key, a small body and a short queue: limits.py http://HOST:PORT, key `sesame`.

What is refused is the library's own error with the server's code; what is refused for now is asked again, and served."""

import threading
import time

import anthropic
import httpx
import openai

from check import base, equal, raises, true

address = base()
asked = []
hooks = {"request": [lambda request: asked.append(request.url.path)]}
chats = openai.OpenAI(base_url=address + "/v1", api_key="sesame", max_retries=0,
                      http_client=openai.DefaultHttpxClient(event_hooks=hooks))
talks = anthropic.Anthropic(base_url=address, api_key="sesame", max_retries=0)


def chat(client=chats, text="Add.", **more):
    return client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}], max_tokens=4, **more)


def talk(client=talks, text="Add.", **more):
    return client.messages.create(model="any", messages=[{"role": "user", "content": text}], max_tokens=4, **more)


def code(error):
    """The code of an error of `anthropic`."""
    return error.body["error"]["details"]["error_code"]


def keys():
    wrong = raises(openai.AuthenticationError, lambda: chat(chats.with_options(api_key="open")), "a wrong key")
    equal(wrong.code, "invalid_api_key", "its code")
    wrong = raises(anthropic.AuthenticationError, lambda: talk(talks.with_options(api_key="open")), "a wrong key")
    equal((code(wrong), wrong.body["error"]["type"]), ("invalid_api_key", "authentication_error"), "its code and type")
    true(chat().choices[0].finish_reason and talk().stop_reason, "the right key")


def bodies():
    large = "x" * 300_000
    refused = raises(openai.APIStatusError, lambda: chat(text=large), "a body of 300 kB")
    equal((refused.status_code, refused.code), (413, "request_too_large"), "its status and code")
    refused = raises(anthropic.APIStatusError, lambda: talk(text=large), "a body of 300 kB")
    equal((refused.status_code, code(refused)), (413, "request_too_large"), "its status and code")


def queue():
    """One answer runs and is not read, one waits; the next is told to come back, and is served when it does."""
    endless = {"model": "any", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 3000, "stream": True,
               "logprobs": True, "top_logprobs": 20, "extra_body": {"ignore_eos": True}}
    running = chats.chat.completions.create(**endless)
    next(iter(running))
    waiting = httpx.Client(timeout=60)
    request = waiting.build_request("POST", address + "/v1/chat/completions", headers={"Authorization": "Bearer sesame"},
                                    json={"messages": endless["messages"], "stream": True, "max_tokens": 3})
    streams = []
    holder = threading.Thread(target=lambda: streams.append(waiting.send(request, stream=True)))
    holder.start()
    deadline = time.monotonic() + 30
    while "\nengine_requests_waiting 1\n" not in httpx.get(address + "/metrics").text:
        true(time.monotonic() < deadline, "nobody waits")
    full = raises(openai.RateLimitError, chat, "a full queue")
    equal((full.code, full.response.headers["x-should-retry"]), ("queue_full", "true"), "its code, and that it may be asked again")
    true(1 <= int(full.response.headers["retry-after"]) <= 120, "when to come back")
    full = raises(anthropic.APIStatusError, talk, "a full queue")
    equal((full.status_code, code(full), full.body["error"]["type"]), (529, "queue_full", "overloaded_error"), "its status, code and type")
    asked.clear()
    threading.Timer(0.5, running.close).start()
    served = chat(chats.with_options(max_retries=8))
    true(served.choices[0].finish_reason == "length" and len(asked) > 1, f"asked {len(asked)} times until it was served")
    holder.join(60)
    true(streams and streams[0].status_code == 200, "who waited was served too")
    streams[0].read()


for part in [keys, bodies, queue]:
    part()
print("openai and anthropic: keys, large bodies and a full queue are as they should be")
