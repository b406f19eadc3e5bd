"""OpenAI's SDK and its responses against the scripted target: openai_responses.py BASE_URL, rules of rules.json.

Everything goes through the client library as programs use it, and is compared with what the script says.
"""

import sys

import openai
from pydantic import BaseModel

THOUGHT = "The user wants to talk.\n"
SAID = "Hello there, how are you? STOP here."
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
NOTE = {"type": "custom", "name": "note", "description": "Keeps a note."}


def ask(client, **more):
    """The same request whole and streamed; both must say the same."""
    whole = client.responses.create(model="any", **more)
    with client.responses.stream(model="any", **more) as stream:
        events = list(stream)
        parts = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    ids = lambda items: [(item.id, getattr(item, "call_id", None)) for item in items]
    assert ids(done) == ids(parts.output), "items keep their ids"
    told = lambda r: [item.model_dump(exclude={"id", "call_id", "parsed_arguments", "content"}) for item in r.output]
    assert told(whole) == told(parts), (told(whole), told(parts))
    assert whole.output_text == parts.output_text
    assert whole.usage.input_tokens == parts.usage.input_tokens
    assert whole.usage.output_tokens == parts.usage.output_tokens
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert (whole.status, whole.object) == ("completed", "response")
    return whole


def talk(client):
    response = ask(client, input="SDK talk", instructions="You are polite.", metadata={"a": "b"})
    reasoning, message = response.output
    assert reasoning.content[0].text == THOUGHT and reasoning.summary == []
    assert response.output_text == SAID and message.content[0].annotations == []
    assert response.metadata == {"a": "b"} and response.instructions == "You are polite."
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    # What was said goes back as it came.
    again = [{"role": "user", "content": "SDK talk"}] + [item.model_dump() for item in response.output]
    ask(client, input=again + [{"role": "user", "content": [{"type": "input_text", "text": "again"}]}])
    quick = ask(client, input="SDK quick", reasoning={"effort": "none"})
    assert quick.output_text == "Quick." and len(quick.output) == 1
    shown = client.responses.create(
        model="any", input="SDK talk", include=["message.output_text.logprobs"], top_logprobs=1
    )
    entries = shown.output[1].content[0].logprobs
    assert "".join(entry.token for entry in entries).strip() == SAID and len(entries[0].top_logprobs) == 1


def tools(client):
    first = [{"role": "user", "content": "SDK tools"}]
    response = ask(client, input=first, tools=[WEATHER, ADD, {"type": "web_search"}])
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = response.output[2:]
    assert [(call.name, call.arguments) for call in calls] == [
        ("weather", '{"city":"Paris"}'),
        ("add", '{"a":1,"b":3}'),
    ]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in reversed(calls)]
    more = dict(input=first + [item.model_dump() for item in response.output] + outputs, tools=[WEATHER, ADD])
    last = ask(client, **more)
    assert last.output_text == "It is sunny in Paris and 4 is the sum."
    assert last.usage.input_tokens_details.cached_tokens > 0, last.usage
    counted = client.responses.input_tokens.count(model="any", **more)
    assert counted.input_tokens == last.usage.input_tokens, (counted, last.usage)


def custom(client):
    first = [{"role": "user", "content": "SDK note"}]
    response = ask(client, input=first, tools=[NOTE])
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert (call.name, call.input) == ("note", 'two\nlines "quoted"'), call
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "kept"}
    last = ask(client, input=first + [item.model_dump() for item in response.output] + [output], tools=[NOTE])
    assert last.output_text == "It is kept."


def ends(client):
    events = list(client.responses.create(model="any", input="SDK talk", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete", events[-1]
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    probe = client.responses.create(model="any", input=[], max_output_tokens=16)
    assert probe.status == "completed" and probe.output == []
    agent = client.responses.create(
        model="any",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "SDK talk"}]},
            {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "x"},
        ],
        tools=[WEATHER, {"type": "web_search"}, {"type": "local_shell"}, NOTE],
        include=["reasoning.encrypted_content"],
        store=False,
        prompt_cache_key="k",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
    )
    assert agent.status == "completed"


def structured(client):
    class Person(BaseModel):
        name: str
        age: int

    response = client.responses.parse(model="any", input="Who is it", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36), response.output
    with client.responses.stream(model="any", input="Who is it", text_format=Person) as stream:
        assert stream.until_done().get_final_response().output_parsed == Person(name="Ada", age=36)


def faults(client):
    events = list(client.responses.create(model="any", input="Fail in the middle", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.error.code == "server_error", events[-1]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "As far as this"
    assert client.responses.create(model="any", input="SDK talk").output_text == SAID


def errors(client):
    def refused(param, **more):
        try:
            client.responses.create(**{"model": "any", "input": "x", **more})
        except openai.BadRequestError as error:
            assert error.param == param, (error.param, error.message)
            return error
        raise AssertionError(f"{param} was not refused")

    refused("previous_response_id", previous_response_id="resp_1")
    refused("input", input=[])
    refused("input[0].type", input=[{"type": "item_reference", "id": "x"}])
    assert refused("input", input="many words " * 20000).code == "context_length_exceeded"
    try:
        client.responses.retrieve("resp_1")
    except openai.InternalServerError as error:
        assert error.status_code == 501 and error.code == "not_implemented"
    else:
        raise AssertionError("a response was kept")


def main():
    client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    for check in (talk, tools, custom, ends, structured, faults, errors):
        check(client)
        print(f"{check.__name__}: as scripted")


main()
