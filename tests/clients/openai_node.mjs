// The `openai` package for Node against the scripted target: chat, a stream, tools.

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say it plainly" }];
const text = "Hello, wörld. This is STOP the end.";

const whole = await client.chat.completions.create({ model: "any", messages });
assert.equal(whole.choices[0].message.content, text);
assert.equal(whole.choices[0].finish_reason, "stop");

let streamed = "";
for await (const chunk of await client.chat.completions.create({ model: "any", messages, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(streamed, text);

const add = { type: "function", function: { name: "add", parameters: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } } } } };
const shout = { type: "function", function: { name: "shout", parameters: { type: "object", properties: { text: { type: "string" } } } } };
const runner = client.chat.completions.stream({ model: "any", messages: [{ role: "user", content: "Use both tools" }], tools: [add, shout] });
const final = await runner.finalChatCompletion();
const calls = final.choices[0].message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
assert.deepEqual(calls, [["add", { a: 2, b: 3 }], ["shout", { text: 'hé "you"' }]]);

await assert.rejects(client.chat.completions.create({ model: "any", messages, temperature: 9 }), (error) => error.status === 400 && error.param === "temperature");
console.log("openai for Node: chat, streams, tools and errors are as they should be");
