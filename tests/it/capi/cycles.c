/* Opens and closes CYCLES times and prints what the process holds: after the first cycles, and after the last.
 *
 *   cycles CONFIG BAD_CONFIG CYCLES [SAMPLE...]
 *
 * Each cycle opens two handles at once, has either complete four tokens, fails to open BAD_CONFIG, and closes all.
 * Lines: `open workers N` with both handles open, and `cycle N used BYTES rss KIB threads N fds N` after each of the
 * samples: bytes that are allocated, and memory that the process has, which the allocator may keep.
 */
#include "slipstream.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(const char *what, slipstream_status status)
{
    if (status != SLIPSTREAM_STATUS_OK) {
        char text[2000];
        size_t length = 0;
        slipstream_last_error(text, sizeof text, &length);
        fprintf(stderr, "%s: status %d: %.*s\n", what, (int)status, (int)length, text);
        exit(1);
    }
}

/* Entries of a folder of /proc; those whose `comm` begins with `prefix` where one is given. */
static int entries(const char *path, const char *prefix)
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

static long resident_kib(void)
{
    long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        if (fscanf(file, "%ld %ld", &size, &resident) != 2) {
            resident = 0;
        }
        fclose(file);
    }
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void four_tokens(uint64_t handle)
{
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const char options[] = "{\"max_tokens\": 4, \"temperature\": 0, \"ignore_eos\": true, \"stream\": false}";
    static char bytes[1 << 16];
    static uint32_t tokens[64];
    slipstream_request request = {0};
    slipstream_event event;
    slipstream_batch batch = {0};
    uint64_t id;
    request.struct_size = sizeof request;
    request.endpoint = SLIPSTREAM_ENDPOINT_TOKENS;
    request.json = options;
    request.json_len = sizeof options - 1;
    request.tokens = prompt;
    request.tokens_len = sizeof prompt / sizeof *prompt;
    check("submit", slipstream_submit(handle, &request, &id));
    batch.struct_size = sizeof batch;
    batch.event_size = sizeof event;
    batch.events = &event;
    batch.events_max = 1;
    batch.bytes = bytes;
    batch.bytes_max = sizeof bytes;
    batch.tokens = tokens;
    batch.tokens_max = 64;
    check("poll", slipstream_poll(handle, id, SLIPSTREAM_FOREVER, &batch));
    if (event.kind != SLIPSTREAM_KIND_ANSWER || event.tokens_len != 4) {
        fprintf(stderr, "no four tokens: %.*s\n", (int)event.json_len, event.json);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    const char *config = argv[1], *bad = argv[2];
    int cycles = atoi(argv[3]);
    for (int cycle = 1; cycle <= cycles; cycle++) {
        uint64_t first, second, none;
        check("open", slipstream_open(config, strlen(config), &first));
        check("open", slipstream_open(config, strlen(config), &second));
        four_tokens(first);
        four_tokens(second);
        if (slipstream_open(bad, strlen(bad), &none) == SLIPSTREAM_STATUS_OK || none != 0) {
            fprintf(stderr, "a bad configuration was opened\n");
            return 1;
        }
        if (cycle == 1) {
            printf("open workers %d\n", entries("/proc/self/task", "worker-"));
        }
        check("close", slipstream_close(first));
        check("close", slipstream_close(second));
        for (int i = 4; i < argc; i++) {
            if (cycle == atoi(argv[i])) {
                struct mallinfo2 heap = mallinfo2();
                printf("cycle %d used %zu rss %ld threads %d fds %d\n", cycle, heap.uordblks + heap.hblkhd,
                       resident_kib(), entries("/proc/self/task", NULL), entries("/proc/self/fd", NULL));
            }
        }
    }
    return 0;
}
