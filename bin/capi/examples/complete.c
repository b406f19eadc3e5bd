/* Completes a prompt three ways: as JSON, as token ids, and cancelled half way.
 *
 *   complete [CONFIG [PROMPT]]
 *
 * CONFIG is the JSON of slipstream_open, without it the built-in model. Prints a line of token ids for each of the first
 * two; they are the same. Any failure ends it with the library's words and exit code 1.
 */
#include "slipstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS = 32, BYTES = 1 << 20, TOKENS = 1 << 14, IDS = 1 << 16 };

/* Room for one poll, and the ids of a request. */
static slipstream_event events[EVENTS];
static char bytes[BYTES];
static uint32_t tokens[TOKENS];
static uint32_t ids[IDS];

static void fail(const char *what, slipstream_status status)
{
    char text[4096];
    size_t length = 0;
    if (slipstream_last_error(text, sizeof text, &length) != SLIPSTREAM_STATUS_OK) {
        length = 0;
    }
    fprintf(stderr, "%s: status %d: %.*s\n", what, (int)status, (int)length, text);
    exit(1);
}

static void check(const char *what, slipstream_status status)
{
    if (status != SLIPSTREAM_STATUS_OK) {
        fail(what, status);
    }
}

static uint64_t submit(uint64_t handle, uint32_t endpoint, const char *json, const uint32_t *prompt, size_t prompt_len)
{
    slipstream_request request = {0};
    uint64_t id = 0;
    request.struct_size = sizeof request;
    request.endpoint = endpoint;
    request.json = json;
    request.json_len = strlen(json);
    request.tokens = prompt;
    request.tokens_len = prompt_len;
    check("submit", slipstream_submit(handle, &request, &id));
    return id;
}

/* One batch of events of a request, or of all for 0. */
static slipstream_batch poll_some(uint64_t handle, uint64_t id)
{
    slipstream_batch batch = {0};
    batch.struct_size = sizeof batch;
    batch.event_size = sizeof(slipstream_event);
    batch.events = events;
    batch.events_max = EVENTS;
    batch.bytes = bytes;
    batch.bytes_max = BYTES;
    batch.tokens = tokens;
    batch.tokens_max = TOKENS;
    check("poll", slipstream_poll(handle, id, SLIPSTREAM_FOREVER, &batch));
    return batch;
}

static int is_last(const slipstream_event *event)
{
    return event->kind != SLIPSTREAM_KIND_CHUNK && event->kind != SLIPSTREAM_KIND_PAGES;
}

/* Polls a request to its end. Returns how many ids came; the text of its last event is still in `bytes`. */
static size_t finish(uint64_t handle, uint64_t id, slipstream_event *last)
{
    size_t count = 0;
    for (;;) {
        slipstream_batch batch = poll_some(handle, id);
        for (size_t i = 0; i < batch.events_len; i++) {
            const slipstream_event *event = &events[i];
            if (count + event->tokens_len > IDS) {
                fprintf(stderr, "more ids than fit\n");
                exit(1);
            }
            if (event->tokens_len > 0) {
                memcpy(ids + count, event->tokens, event->tokens_len * sizeof *ids);
                count += event->tokens_len;
            }
            if (is_last(event)) {
                *last = *event;
                return count;
            }
        }
    }
}

static void print_ids(const char *name, size_t count)
{
    printf("%s", name);
    for (size_t i = 0; i < count; i++) {
        printf(" %u", (unsigned)ids[i]);
    }
    printf("\n");
}

static void expect_kind(const char *what, const slipstream_event *event, slipstream_kind kind)
{
    if (event->kind != kind) {
        fprintf(stderr, "%s: kind %u, status %u: %.*s\n", what, (unsigned)event->kind, (unsigned)event->status,
                (int)event->json_len, event->json_len ? event->json : "");
        exit(1);
    }
}

/* `text` as a JSON string, in memory of its own. */
static char *quoted(const char *text)
{
    char *out = malloc(6 * strlen(text) + 3), *at = out;
    if (out == NULL) {
        exit(1);
    }
    *at++ = '"';
    for (; *text != 0; text++) {
        if ((unsigned char)*text < 0x20 || *text == '"' || *text == '\\') {
            at += sprintf(at, "\\u%04x", (unsigned)(unsigned char)*text);
        } else {
            *at++ = *text;
        }
    }
    *at++ = '"';
    *at = 0;
    return out;
}

static char *joined(const char *before, const char *between, const char *after)
{
    size_t size = strlen(before) + strlen(between) + strlen(after) + 1;
    char *out = malloc(size);
    if (out == NULL) {
        exit(1);
    }
    snprintf(out, size, "%s%s%s", before, between, after);
    return out;
}

/* The numbers of `"tokens":[...]`, into `ids`. */
static size_t numbers(const char *json, size_t json_len)
{
    char *text = malloc(json_len + 1), *at;
    size_t count = 0;
    if (text == NULL) {
        exit(1);
    }
    memcpy(text, json, json_len);
    text[json_len] = 0;
    at = strstr(text, "\"tokens\":[");
    if (at != NULL) {
        at += strlen("\"tokens\":[");
        while (*at != ']' && *at != 0 && count < IDS) {
            ids[count++] = (uint32_t)strtoul(at, &at, 10);
            at += *at == ',';
        }
    }
    free(text);
    return count;
}

int main(int argc, char **argv)
{
    const char *config = argc > 1 ? argv[1] : "";
    const char *settings = "\"max_tokens\": 24, \"temperature\": 0, \"seed\": 7";
    char *prompt = quoted(argc > 2 ? argv[2] : "def total_price(items):\n    result = 0\n");
    static char about[1 << 16];
    size_t about_len = 0, count;
    uint64_t handle = 0, id;
    slipstream_event last;

    if (slipstream_abi() != SLIPSTREAM_ABI) {
        fprintf(stderr, "the library is of another version than the header\n");
        return 1;
    }
    check("open", slipstream_open(config, strlen(config), &handle));
    check("about", slipstream_about(handle, about, sizeof about, &about_len));
    printf("about %.*s\n", (int)about_len, about);

    /* As JSON, like a client of the daemon. */
    char *start = joined("{\"prompt\": ", prompt, ", \"stream\": true, \"return_token_ids\": true, ");
    char *body = joined(start, settings, "}");
    id = submit(handle, SLIPSTREAM_ENDPOINT_COMPLETIONS, body, NULL, 0);
    count = finish(handle, id, &last);
    expect_kind("json", &last, SLIPSTREAM_KIND_END);
    print_ids("json", count);

    /* As token ids: the tokenizer's answer is the next prompt. */
    char *text = joined("{\"add_special\": true, \"content\": ", prompt, "}");
    id = submit(handle, SLIPSTREAM_ENDPOINT_TOKENIZE, text, NULL, 0);
    finish(handle, id, &last);
    expect_kind("tokenize", &last, SLIPSTREAM_KIND_ANSWER);
    count = numbers(last.json, last.json_len);
    static uint32_t prompt_ids[IDS];
    memcpy(prompt_ids, ids, count * sizeof *ids);
    char *options = joined("{", settings, "}");
    id = submit(handle, SLIPSTREAM_ENDPOINT_TOKENS, options, prompt_ids, count);
    count = finish(handle, id, &last);
    expect_kind("tokens", &last, SLIPSTREAM_KIND_END);
    print_ids("tokens", count);

    /* Cancelled: one event is all that follows. */
    id = submit(handle, SLIPSTREAM_ENDPOINT_TOKENS, "{\"max_tokens\": 4000, \"ignore_eos\": true}", prompt_ids, 4);
    poll_some(handle, id);
    check("cancel", slipstream_cancel(handle, id));
    finish(handle, id, &last);
    expect_kind("cancel", &last, SLIPSTREAM_KIND_CANCELLED);

    slipstream_stats stats = {0};
    stats.struct_size = sizeof stats;
    check("stats", slipstream_get_stats(handle, &stats));
    printf("stats requests %llu completion_tokens %llu\n", (unsigned long long)stats.requests,
           (unsigned long long)stats.completion_tokens);

    check("close", slipstream_close(handle));
    if (slipstream_close(handle) != SLIPSTREAM_STATUS_HANDLE) {
        fprintf(stderr, "a handle was closed twice\n");
        return 1;
    }
    free(start), free(body), free(text), free(options), free(prompt);
    return 0;
}
