"""The `openai` package against the scripted target: chat, streams, tools, structured output, completions, errors."""

import json

import openai
from pydantic import BaseModel

from check import base, equal, raises, true

client = openai.OpenAI(base_url=base() + "/v1", api_key="none", max_retries=0)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object",
       "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
SHOUT = {"type": "function", "function": {"name": "shout", "parameters": {"type": "object",
         "properties": {"text": {"type": "string"}}, "required": ["text"]}}}


def ask(text, **more):
    return client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}], **more)


def models():
    listed = client.models.list()
    equal([m.id for m in listed], ["org/scripted"], "models")
    equal(client.models.retrieve("org/scripted").id, "org/scripted", "a model by name")
    raises(openai.NotFoundError, lambda: client.models.retrieve("no/such"), "an unknown model")


def chat():
    whole = ask("Say it plainly")
    message = whole.choices[0].message
    equal(message.content, "Hello, wörld. This is STOP the end.", "content")
    equal(message.reasoning_content, "A short thought.\n", "thinking")
    equal(whole.choices[0].finish_reason, "stop", "reason")
    usage = whole.usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "usage")
    true(0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens, "thinking is counted")
    for strategy in ["off", "ngram-suffix"]:
        extra = {"speculative": {"strategy": strategy}}
        text, thought, counted, finish = "", "", None, None
        options = {"include_usage": True}
        for chunk in ask("Say it plainly", stream=True, stream_options=options, extra_body=extra):
            counted = chunk.usage or counted
            for choice in chunk.choices:
                text += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
        equal((text, thought, finish), (message.content, message.reasoning_content, "stop"), f"stream, {strategy}")
        equal(counted.completion_tokens, usage.completion_tokens, f"usage of a stream, {strategy}")
    with client.chat.completions.stream(model="any", messages=[{"role": "user", "content": "Say it plainly"}],
                                        stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    true("content.delta" in kinds and "content.done" in kinds, "events of the stream helper")
    equal(final.choices[0].message.content, message.content, "final completion")
    equal(final.usage.completion_tokens, usage.completion_tokens, "usage of the final completion")


def choices():
    three = ask("Say it plainly", n=3, seed=7, temperature=0.5)
    equal([c.index for c in three.choices], [0, 1, 2], "indices")
    one = ask("Say it plainly", seed=7, temperature=0.5)
    equal(three.choices[0].message.content, one.choices[0].message.content, "the first of three")
    equal(three.usage.prompt_tokens, one.usage.prompt_tokens, "the prompt is counted once")


def tools():
    def calls_of(message):
        return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]

    expected = [("add", {"a": 2, "b": 3}), ("shout", {"text": 'hé "you"'})]
    first = ask("Use both tools", tools=[ADD, SHOUT])
    equal(first.choices[0].finish_reason, "tool_calls", "reason")
    equal(calls_of(first.choices[0].message), expected, "calls")
    equal(first.choices[0].message.content, "I look.", "content beside calls")
    with client.chat.completions.stream(model="any", messages=[{"role": "user", "content": "Use both tools"}],
                                        tools=[ADD, SHOUT]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0].message
    equal(calls_of(final), expected, "calls of a stream")
    ids = [c.id for c in final.tool_calls]
    true(len(set(ids)) == 2 and all(i.startswith("call_") and len(i) == 29 for i in ids), f"ids {ids}")
    # The loop closes, whatever order the results come in.
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": c.id, "content": "the sum is 5"} for c in message.tool_calls]
    messages = [{"role": "user", "content": "Use both tools"}, message.model_dump(exclude_none=True), *results[::-1]]
    last = client.chat.completions.create(model="any", messages=messages, tools=[ADD, SHOUT])
    equal(last.choices[0].message.content, "The sum is 5.", "the end of the loop")
    missing = raises(openai.BadRequestError,
                     lambda: client.chat.completions.create(model="any", messages=[*messages[:3], messages[0]], tools=[ADD, SHOUT]),
                     "a call without its result")
    equal(missing.code, "missing_tool_result", "its code")
    none = ask("Use both tools", tools=[ADD, SHOUT], tool_choice="none")
    equal(none.choices[0].message.tool_calls, None, "no call where none is wanted")
    unknown = raises(openai.BadRequestError,
                     lambda: ask("x", tools=[ADD], tool_choice={"type": "function", "function": {"name": "what"}}),
                     "a choice of an unknown tool")
    equal(unknown.param, "tool_choice", "its parameter")


def structured():
    class Person(BaseModel):
        name: str
        age: int

    parsed = client.chat.completions.parse(model="any", messages=[{"role": "user", "content": "Who is it"}],
                                           response_format=Person)
    equal(parsed.choices[0].message.parsed, Person(name="Ada", age=36), "a parsed answer")
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    refused = raises(openai.BadRequestError, lambda: ask("Who is it", response_format=bad), "a schema that cannot be met")
    equal(refused.code, "invalid_schema", "its code")


def stops_and_logprobs():
    stopped = ask("Say it plainly", stop=["STOP"])
    equal(stopped.choices[0].message.content, "Hello, wörld. This is ", "a stop string")
    entries = ask("Say it plainly", logprobs=True, top_logprobs=2).choices[0].logprobs.content
    equal(b"".join(bytes(e.bytes) for e in entries).decode().lstrip("\n"), "Hello, wörld. This is STOP the end.", "entries")
    true(all(len(e.top_logprobs) == 2 for e in entries), "alternatives")
    short = ask("Say it plainly", max_tokens=3)
    equal((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 3), "a limit")


def completions():
    whole = client.completions.create(model="any", prompt="Once upon", max_tokens=32)
    equal(whole.choices[0].text, " a time there was a server.", "text")
    parts = client.completions.create(model="any", prompt="Once upon", max_tokens=32, stream=True)
    equal("".join(c.text for part in parts for c in part.choices), whole.choices[0].text, "streamed text")


def errors():
    wrong = raises(openai.BadRequestError, lambda: ask("x", temperature=9), "a temperature of 9")
    equal(wrong.param, "temperature", "its parameter")
    long = raises(openai.BadRequestError, lambda: ask("word " * 40_000), "a prompt without end")
    equal(long.code, "context_length_exceeded", "its code")
    absent = raises(openai.APIStatusError, lambda: client.embeddings.create(model="any", input="x"), "embeddings")
    equal(absent.status_code, 501, "their status")


for part in [models, chat, choices, tools, structured, stops_and_logprobs, completions, errors]:
    part()
print("openai: chat, streams, tools, structured output, completions and errors are as they should be")
