"""Anthropic's SDK against the scripted target: anthropic_sdk.py BASE_URL, rules of rules.json.

Everything goes through the client library as programs use it, and is compared with what the script says.
"""

import sys

import anthropic

THOUGHT = "The user wants to talk.\n"
SAID = "Hello there, how are you? STOP here."
TOOLS = [
    {
        "name": "weather",
        "description": "Weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {
        "name": "add",
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def ask(client, **more):
    """The same request whole and streamed; both must say the same."""
    whole = client.messages.create(model="any", max_tokens=500, **more)
    with client.messages.stream(model="any", max_tokens=500, **more) as stream:
        kinds = [event.type for event in stream]
        parts = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    told = lambda message: [block.model_dump(exclude={"id", "citations", "caller"}) for block in message.content]
    assert told(whole) == told(parts), (told(whole), told(parts))
    assert (whole.stop_reason, whole.stop_sequence) == (parts.stop_reason, parts.stop_sequence)
    assert prompt_tokens(whole.usage) == prompt_tokens(parts.usage)
    assert whole.usage.output_tokens == parts.usage.output_tokens > 0
    return whole


def models(client):
    page = client.models.list(limit=5)
    (model,) = page.data
    assert model.id == "org/scripted" and model.created_at.year > 2000 and not page.has_next_page(), page
    assert [other.id for other in client.models.list()] == ["org/scripted"], "one page, listed once"
    assert list(client.models.list(after_id="org/scripted")) == []
    assert client.models.retrieve("org/scripted").display_name == model.display_name


def talk(client):
    message = ask(client, messages=[{"role": "user", "content": "SDK talk"}])
    thinking, text = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", THOUGHT), thinking
    assert thinking.signature.startswith("engine-")
    assert (text.type, text.text) == ("text", SAID), text
    assert message.stop_reason == "end_turn" and message.role == "assistant" and message.id.startswith("msg_")
    # What was thought goes back with its signature.
    ask(
        client,
        messages=[
            {"role": "user", "content": "SDK talk"},
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [{"type": "text", "text": "again"}]},
        ],
    )
    stopped = ask(client, messages=[{"role": "user", "content": "SDK talk"}], stop_sequences=["STOP"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP"), stopped
    hidden = ask(
        client,
        messages=[{"role": "user", "content": "SDK talk"}],
        thinking={"type": "adaptive", "display": "omitted"},
    )
    assert hidden.content[0].thinking == "" and hidden.content[0].signature == thinking.signature
    quick = ask(client, messages=[{"role": "user", "content": "SDK quick"}], thinking={"type": "disabled"})
    assert [block.type for block in quick.content] == ["text"] and quick.content[0].text == "Quick."


def tools(client):
    messages = [{"role": "user", "content": "SDK tools"}]
    message = ask(client, messages=messages, tools=TOOLS, system="You know things.")
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    uses = message.content[2:]
    assert [(use.name, use.input) for use in uses] == [("weather", {"city": "Paris"}), ("add", {"a": 1, "b": 3})]
    assert len({use.id for use in uses}) == 2 and all(use.id.startswith("toolu_") for use in uses)
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {"type": "tool_result", "tool_use_id": uses[1].id, "content": [{"type": "text", "text": "4"}]},
        {"type": "tool_result", "tool_use_id": uses[0].id, "content": "no idea", "is_error": True},
    ]
    messages.append({"role": "user", "content": results})
    messages.append({"role": "system", "content": "Be brief."})
    more = dict(messages=messages, tools=TOOLS, system="You know things.")
    last = ask(client, **more)
    assert last.content[-1].text == "It is sunny in Paris and 4 is the sum." and last.stop_reason == "end_turn"
    assert last.usage.cache_read_input_tokens > 0, last.usage
    counted = client.messages.count_tokens(model="any", **more)
    assert counted.input_tokens == prompt_tokens(last.usage), (counted, last.usage)
    empty = ask(client, messages=[{"role": "user", "content": "SDK no arguments"}], tools=TOOLS)
    assert [(block.name, block.input) for block in empty.content if block.type == "tool_use"] == [("now", {})]


def runner(client):
    """The loop that the SDK itself runs."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        assert city == "Paris"
        return "sunny"

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """The sum."""
        return str(a + b)

    run = client.beta.messages.tool_runner(
        model="any", max_tokens=500, tools=[weather, add], messages=[{"role": "user", "content": "SDK tools"}]
    )
    last = run.until_done()
    assert last.content[-1].text == "It is sunny in Paris and 4 is the sum.", last


def limits(client):
    """A limit beyond the context is none: the text goes on to the end of what fits."""
    with client.messages.stream(model="any", max_tokens=128_000, messages=[{"role": "user", "content": "Never stop"}]) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "end_turn" and message.content[0].text.startswith("on and on"), message.stop_reason
    long = "word " * 7900
    with client.messages.stream(model="any", max_tokens=128_000, messages=[{"role": "user", "content": long + "Never stop"}]) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded", message.stop_reason


def faults(client):
    """What fails in the middle is an error of the library, and the next request is served."""
    failing = dict(model="any", max_tokens=50, messages=[{"role": "user", "content": "Fail in the middle"}])
    text = ""
    try:
        with client.messages.stream(**failing) as stream:
            for piece in stream.text_stream:
                text += piece
    except anthropic.APIStatusError as error:
        assert error.body["error"]["type"] == "api_error", error.body
    else:
        raise AssertionError("a stream that failed ended well")
    assert text == "As far as this", text
    try:
        client.messages.create(**failing)
    except anthropic.InternalServerError as error:
        assert error.status_code == 500 and error.body["error"]["details"]["error_code"] == "engine_error", error.body
    else:
        raise AssertionError("an answer that failed was given")
    assert client.messages.create(model="any", max_tokens=500, messages=[{"role": "user", "content": "SDK talk"}]).content


def errors(client):
    def refused(kind, **more):
        try:
            client.messages.create(**{"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], **more})
        except anthropic.APIStatusError as error:
            assert isinstance(error, kind), repr(error)
            assert error.request_id == error.body["request_id"]
            return error
        raise AssertionError("it was not refused")

    error = refused(anthropic.BadRequestError, messages=[])
    assert error.body["error"]["type"] == "invalid_request_error"
    assert error.body["error"]["details"] == {"error_code": "invalid_value", "param": "messages"}, error.body
    error = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": "many words " * 20000}])
    assert error.body["error"]["message"].startswith("prompt is too long: "), error.body
    error = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert error.body["error"]["details"]["param"] == "messages[0].content[0].type", error.body
    try:
        client.post("/v1/nothing", cast_to=object, body={})
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown path was found")


def main():
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
    for check in (models, talk, tools, runner, limits, faults, errors):
        check(client)
        print(f"{check.__name__}: as scripted")


main()
