"""`litellm` against the scripted target, through the providers that its users name."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

from check import base, equal, true

address = base()
litellm.telemetry = False
litellm.suppress_debug_info = True
TEXT = "Hello, wörld. This is STOP the end."
MESSAGES = [{"role": "user", "content": "Say it plainly"}]

for model in ["openai/org/scripted", "hosted_vllm/org/scripted"]:
    how = {"model": model, "messages": MESSAGES, "api_base": address + "/v1", "api_key": "none"}
    whole = litellm.completion(**how)
    equal(whole.choices[0].message.content, TEXT, f"content, {model}")
    equal(whole.choices[0].message.reasoning_content, "A short thought.\n", f"thinking, {model}")
    chunks = list(litellm.completion(**how, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    equal(built.choices[0].message.content, TEXT, f"streamed content, {model}")
    equal(built.usage.completion_tokens, whole.usage.completion_tokens, f"usage of a stream, {model}")

text = litellm.text_completion(model="text-completion-openai/org/scripted", prompt="Once upon", max_tokens=32,
                               api_base=address + "/v1", api_key="none")
equal(text.choices[0].text, " a time there was a server.", "a text completion")

try:
    litellm.completion(model="openai/org/scripted", messages=[{"role": "user", "content": "word " * 40_000}],
                       api_base=address + "/v1", api_key="none", num_retries=0)
    raised = None
except litellm.ContextWindowExceededError as error:
    raised = error
true(raised is not None, "a prompt without end is a context window error")
print("litellm: openai, hosted_vllm and text-completion-openai are as they should be")
