/* What the test programs have in common: checked calls, and what the process holds. */
#ifndef HOST_H
#define HOST_H

#include "slipstream.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The library's words for the last failure of this thread. */
static inline const char *last_error(void)
{
    static __thread char text[2000];
    size_t length = 0;
    text[0] = 0;
    if (slipstream_last_error(text, sizeof text - 1, &length) == SLIPSTREAM_STATUS_OK) {
        text[length] = 0;
    }
    return text;
}

static inline void check(const char *what, slipstream_status status)
{
    if (status != SLIPSTREAM_STATUS_OK) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, last_error());
        exit(1);
    }
}

/* Entries of a folder of /proc; those whose `comm` begins with `prefix` where one is given. */
static inline int entries(const char *path, const char *prefix)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    int count = 0;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char name[300], comm[64] = "";
        FILE *file;
        if (entry->d_name[0] == '.') {
            continue;
        }
        if (prefix != NULL) {
            snprintf(name, sizeof name, "%s/%.200s/comm", path, entry->d_name);
            file = fopen(name, "r");
            if (file != NULL) {
                if (fgets(comm, sizeof comm, file) == NULL) {
                    comm[0] = 0;
                }
                fclose(file);
            }
            if (strncmp(comm, prefix, strlen(prefix)) != 0) {
                continue;
            }
        }
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

static inline int threads(void)
{
    return entries("/proc/self/task", NULL);
}

static inline int descriptors(void)
{
    return entries("/proc/self/fd", NULL);
}

/* Whether the process has that many threads. One that was joined may be there a moment longer. */
static inline int threads_are(int count)
{
    for (int i = 0; i < 2000 && threads() != count; i++) {
        usleep(1000);
    }
    return threads() == count;
}

static inline uint64_t open_handle(const char *config)
{
    uint64_t handle = 0;
    check("open", slipstream_open(config, strlen(config), &handle));
    return handle;
}

/* Queues a prompt of eight tokens. */
static inline slipstream_status submit_tokens(uint64_t handle, const char *options, uint64_t *id)
{
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    slipstream_request request = {0};
    request.struct_size = sizeof request;
    request.endpoint = SLIPSTREAM_ENDPOINT_TOKENS;
    request.json = options;
    request.json_len = strlen(options);
    request.tokens = prompt;
    request.tokens_len = sizeof prompt / sizeof *prompt;
    return slipstream_submit(handle, &request, id);
}

/* Room for one event. */
struct room {
    slipstream_event event;
    char bytes[1 << 16];
    uint32_t tokens[1 << 10];
    slipstream_batch batch;
};

static inline slipstream_status poll_one(uint64_t handle, uint64_t id, uint64_t timeout_ms, struct room *room)
{
    memset(&room->batch, 0, sizeof room->batch);
    room->batch.struct_size = sizeof room->batch;
    room->batch.event_size = sizeof room->event;
    room->batch.events = &room->event;
    room->batch.events_max = 1;
    room->batch.bytes = room->bytes;
    room->batch.bytes_max = sizeof room->bytes;
    room->batch.tokens = room->tokens;
    room->batch.tokens_max = sizeof room->tokens / sizeof *room->tokens;
    return slipstream_poll(handle, id, timeout_ms, &room->batch);
}

/* Completes so many tokens; they are in the room. */
static inline void complete(uint64_t handle, int count, struct room *room)
{
    char options[100];
    uint64_t id;
    snprintf(options, sizeof options,
             "{\"max_tokens\": %d, \"temperature\": 0, \"ignore_eos\": true, \"stream\": false}", count);
    check("submit", submit_tokens(handle, options, &id));
    check("poll", poll_one(handle, id, SLIPSTREAM_FOREVER, room));
    if (room->event.kind != SLIPSTREAM_KIND_ANSWER || room->event.tokens_len != (size_t)count) {
        fprintf(stderr, "no %d tokens: %.*s\n", count, (int)room->event.json_len, room->event.json);
        exit(1);
    }
}

#endif
