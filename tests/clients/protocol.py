"""The `openai` package against a real model: what it says does not matter, how it is said does. With each strategy that the
model offers the text is the same."""

import openai

from check import base, equal, identities, true

client = openai.OpenAI(base_url=base() + "/v1", api_key="none", max_retries=0)
listed = client.models.list().data[0]
strategies = listed.meta["strategies"]
messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
seen = {}
for strategy in strategies:
    for temperature in [0, 0.8]:
        how = {"model": listed.id, "messages": messages, "max_tokens": 48, "temperature": temperature, "seed": 5,
               "extra_body": {"speculative": {"strategy": strategy}}}
        whole = client.chat.completions.create(**how)
        text = whole.choices[0].message.content
        true(text, f"{strategy}: there is no text")
        equal(text, seen.setdefault(temperature, text), f"{strategy}, temperature {temperature}: the text of another strategy")
        equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens, "usage")
        identities(whole.usage.model_dump(), whole.timings, whole.speculation)
        equal(whole.speculation["effective"]["strategy"], strategy, "the strategy that ran")
        parts = client.chat.completions.create(**how, stream=True)
        streamed = "".join(choice.delta.content or "" for part in parts for choice in part.choices)
        equal(streamed, text, f"{strategy}, temperature {temperature}: the streamed text")
print(f"openai on {listed.id}: {len(strategies)} strategies say the same, streamed or not")
