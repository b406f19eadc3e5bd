"""`litellm` against the scripted target, through the providers that its users name."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

from check import base, equal, raises, true

address = base()
litellm.telemetry = False
litellm.suppress_debug_info = True
TEXT = "Hello, wörld. This is STOP the end."
THOUGHT = "A short thought.\n"
MESSAGES = [{"role": "user", "content": "Say it plainly"}]
# A provider of litellm, and where it wants to be told to ask.
CHATS = [("openai", address + "/v1"), ("hosted_vllm", address + "/v1"), ("anthropic", address)]


def chats():
    for provider, api_base in CHATS:
        how = {"model": f"{provider}/org/scripted", "messages": MESSAGES, "api_base": api_base, "api_key": "none"}
        litellm.completion(**how)
        whole = litellm.completion(**how)
        message = whole.choices[0].message
        equal((message.content, message.reasoning_content), (TEXT, THOUGHT), f"the answer, {provider}")
        equal(whole.choices[0].finish_reason, "stop", f"the reason, {provider}")
        known = whole.usage.prompt_tokens_details.cached_tokens
        true(0 < known < whole.usage.prompt_tokens, f"known tokens of a second request, {provider}: {known} of {whole.usage}")
        chunks = list(litellm.completion(**how, stream=True, stream_options={"include_usage": True}))
        built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        streamed = built.choices[0].message
        equal((streamed.content, streamed.reasoning_content), (TEXT, THOUGHT), f"the streamed answer, {provider}")
        equal((built.usage.prompt_tokens, built.usage.completion_tokens),
              (whole.usage.prompt_tokens, whole.usage.completion_tokens), f"usage of a stream, {provider}")


def texts():
    text = litellm.text_completion(model="text-completion-openai/org/scripted", prompt="Once upon", max_tokens=32,
                                   api_base=address + "/v1", api_key="none")
    equal(text.choices[0].text, " a time there was a server.", "a text completion")


def responses():
    how = {"model": "openai/org/scripted", "input": "Say it plainly", "api_base": address + "/v1", "api_key": "none"}
    whole = litellm.responses(**how)
    said = [part.text for item in whole.output if item.type == "message" for part in item.content]
    equal(said, [TEXT], "a response")
    events = list(litellm.responses(**how, stream=True))
    equal(events[-1].type, "response.completed", "the last event")
    equal("".join(e.delta for e in events if e.type == "response.output_text.delta"), TEXT, "a streamed response")


def too_long():
    long = [{"role": "user", "content": "word " * 40_000}]
    for provider, api_base in CHATS:
        raises(litellm.ContextWindowExceededError,
               lambda: litellm.completion(model=f"{provider}/org/scripted", messages=long, api_base=api_base, api_key="none", num_retries=0),
               f"a prompt without end, {provider}")


for part in [chats, texts, responses, too_long]:
    part()
print("litellm: openai, hosted_vllm, anthropic, text-completion-openai and responses are as they should be")
