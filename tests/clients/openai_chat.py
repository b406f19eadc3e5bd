"""The `openai` package against the scripted target: chat, streams, tools, structured output, completions, errors."""

import json

import openai
from pydantic import BaseModel

from check import base, equal, identities, raises, true

client = openai.OpenAI(base_url=base() + "/v1", api_key="none", max_retries=0)
PAGE = 16  # tokens
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
    identities(whole.usage.model_dump(), whole.timings, whole.speculation)
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
    with client.chat.completions.stream(model="any", messages=[{"role": "user", "content": "Say it plainly"}], n=3, seed=7,
                                        temperature=0.5, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    equal([(c.index, c.message.content, c.finish_reason) for c in final.choices],
          [(c.index, c.message.content, c.finish_reason) for c in three.choices], "a stream of three")
    equal((final.usage.prompt_tokens, final.usage.completion_tokens),
          (three.usage.prompt_tokens, three.usage.completion_tokens), "usage of a stream of three")


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
    # The first turn is not computed again, but for what a template may write in another way.
    cached, known = last.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens
    true(cached >= known - PAGE, f"{cached} of {known} tokens of the first turn are known in the second")
    empty = [{"role": "user", "content": "Use both tools"}, {**message.model_dump(exclude_none=True), "content": None}, *results]
    equal(client.chat.completions.create(model="any", messages=empty, tools=[ADD, SHOUT]).choices[0].message.content,
          "The sum is 5.", "a loop whose calls have no content")
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


def tool_choices():
    """What must be called is, and no more of it than was allowed."""
    named = {"type": "function", "function": {"name": "shout"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice in ["auto", "required", named, allowed]:
        answer = ask("Call one", tools=[ADD, SHOUT], tool_choice=choice).choices[0]
        equal([(c.function.name, c.function.arguments) for c in answer.message.tool_calls], [("shout", '{"text":"hé"}')], f"{choice}")
        equal(answer.finish_reason, "tool_calls", f"the reason of {choice}")
    single = ask("Use both tools", tools=[ADD, SHOUT], parallel_tool_calls=False).choices[0]
    equal([c.function.name for c in single.message.tool_calls], ["add"], "one call where two would come")
    for wrong in ["required", named]:
        bad = raises(openai.BadRequestError, lambda: ask("x", tool_choice=wrong), "a call without tools")
        equal(bad.param, "tool_choice", "its parameter")


def structured():
    class Person(BaseModel):
        name: str
        age: int

    parsed = client.chat.completions.parse(model="any", messages=[{"role": "user", "content": "Who is it"}],
                                           response_format=Person)
    equal(parsed.choices[0].message.parsed, Person(name="Ada", age=36), "a parsed answer")
    true(parsed.choices[0].message.reasoning_content, "thinking in front of it")
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}
    for schema, code, place in [({"not": {}}, "invalid_schema", "/not"), (pattern, "invalid_schema", "/properties/a/pattern"),
                                (None, "missing_required_parameter", "schema")]:
        bad = {"type": "json_schema", "json_schema": {"name": "x", **({"schema": schema} if schema else {})}}
        refused = raises(openai.BadRequestError, lambda: ask("Who is it", response_format=bad), f"the schema {schema}")
        equal(refused.code, code, "its code")
        true(place in str(refused), f"{place} in {refused}")


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


def faults():
    """What fails is an error of the library, in a stream too, and what will fail again is asked once."""
    asked = []
    hooks = {"request": [lambda request: asked.append(request.url.path)]}
    patient = client.with_options(max_retries=3, http_client=openai.DefaultHttpxClient(event_hooks=hooks))
    failing = {"model": "any", "messages": [{"role": "user", "content": "Fail in the middle"}]}
    text = ""

    def read():
        nonlocal text
        for chunk in patient.chat.completions.create(**failing, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)

    error = raises(openai.APIError, read, "a stream that fails")
    equal((text, error.code), ("As far as this", "engine_error"), "what came before, and the error's code")
    raises(openai.InternalServerError, lambda: patient.chat.completions.create(**failing), "an answer that fails")
    raises(openai.InternalServerError, lambda: patient.embeddings.create(model="any", input="x"), "embeddings")
    equal(asked, ["/v1/chat/completions", "/v1/chat/completions", "/v1/embeddings"], "each was asked once")
    equal(ask("Say it plainly").choices[0].finish_reason, "stop", "the next request")


for part in [models, chat, choices, tools, tool_choices, structured, stops_and_logprobs, completions, errors, faults]:
    part()
print("openai: chat, streams, tools, structured output, completions and errors are as they should be")
