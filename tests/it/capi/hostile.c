/* A host with bad manners: signals that interrupt every wait, threads that go on while a handle is closed, two models
 * at once, and children that are forked.
 *
 *   hostile CONFIG OTHER_CONFIG CHANGING_CONFIG CHANGING_FILE
 *
 * The last file is written while a handle has it. Prints `forked`, `dead TEXT`, and `closed` with how often which status
 * came while handles were closed; then it ends with an open handle that computes. The library says nothing by itself.
 */
#define _GNU_SOURCE
#include "host.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

static uint64_t shared;
static int counts[SLIPSTREAM_STATUS_INTERNAL + 1];

static void count(slipstream_status status)
{
    __atomic_add_fetch(&counts[status], 1, __ATOMIC_SEQ_CST);
}

/* Submits, polls and cancels on a handle that may be closed at any moment, until it is. */
static void *guest(void *argument)
{
    struct room *room = malloc(sizeof *room);
    int number = (int)(size_t)argument;
    (void)number;
    for (;;) {
        uint64_t id = 0;
        slipstream_stats stats = {0};
        slipstream_status status = submit_tokens(shared, "{\"max_tokens\": 40, \"ignore_eos\": true}", &id);
        count(status);
        if (status == SLIPSTREAM_STATUS_HANDLE || status == SLIPSTREAM_STATUS_CLOSED) {
            break;
        }
        if (number % 2 == 0) {
            count(poll_one(shared, id, SLIPSTREAM_FOREVER, room));
        } else {
            count(poll_one(shared, 0, 1, room));
        }
        count(slipstream_cancel(shared, id));
        while (poll_one(shared, id, SLIPSTREAM_FOREVER, room) == SLIPSTREAM_STATUS_OK) {
        }
        stats.struct_size = sizeof stats;
        count(slipstream_get_stats(shared, &stats));
    }
    free(room);
    return NULL;
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void alarms(long microseconds)
{
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Every function in a child: none may wait or crash. */
static int child_fails(uint64_t handle, const char *config)
{
    uint64_t id = 0, opened = 0;
    size_t length = 0;
    char text[100];
    struct room *room = malloc(sizeof *room);
    slipstream_stats stats = {0};
    stats.struct_size = sizeof stats;
    return slipstream_open(config, strlen(config), &opened) == SLIPSTREAM_STATUS_HANDLE && opened == 0 &&
           slipstream_preflight(config, strlen(config), text, sizeof text, &length) == SLIPSTREAM_STATUS_HANDLE &&
           slipstream_about(handle, text, sizeof text, &length) == SLIPSTREAM_STATUS_HANDLE &&
           submit_tokens(handle, "", &id) == SLIPSTREAM_STATUS_HANDLE &&
           poll_one(handle, 0, SLIPSTREAM_FOREVER, room) == SLIPSTREAM_STATUS_HANDLE &&
           slipstream_cancel(handle, 1) == SLIPSTREAM_STATUS_HANDLE &&
           slipstream_get_stats(handle, &stats) == SLIPSTREAM_STATUS_HANDLE &&
           slipstream_close(handle) == SLIPSTREAM_STATUS_HANDLE && strstr(last_error(), "forked") != NULL;
}

/* A model file that changes ends its engine, and nothing else. */
static void change(const char *config, const char *file)
{
    static struct room room;
    uint64_t handle = open_handle(config), id;
    struct timeval times[2] = {{1, 0}, {1, 0}};
    slipstream_status status;
    if (utimes(file, times) != 0) {
        perror(file);
        exit(1);
    }
    check("submit", submit_tokens(handle, "{\"max_tokens\": 9, \"ignore_eos\": true}", &id));
    do {
        check("poll", poll_one(handle, id, SLIPSTREAM_FOREVER, &room));
    } while (room.event.kind == SLIPSTREAM_KIND_CHUNK);
    if (room.event.kind != SLIPSTREAM_KIND_ERROR || room.event.status != 500) {
        fprintf(stderr, "kind %u of a model that has changed\n", (unsigned)room.event.kind);
        exit(1);
    }
    do {
        status = poll_one(handle, 0, 1, &room);
    } while (status == SLIPSTREAM_STATUS_OK);
    printf("dead %d %s\n", (int)status, last_error());
    check("close", slipstream_close(handle));
}

int main(int argc, char **argv)
{
    enum { GUESTS = 4, ROUNDS = 6 };
    const char *config = argv[argc > 4 ? 1 : 0], *other = argv[2];
    static struct room alone, beside, second;
    struct sigaction action;
    uint64_t handle = open_handle(config), with_other, id;
    int baseline, status;
    pid_t child;

    complete(handle, 12, &alone);
    with_other = open_handle(other);
    complete(with_other, 12, &second);

    /* Signals of the host interrupt every wait of the library. */
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    alarms(500);
    complete(handle, 12, &beside);
    alarms(0);
    if (memcmp(alone.tokens, beside.tokens, 12 * sizeof *alone.tokens) != 0) {
        fprintf(stderr, "other tokens beside a second model\n");
        return 1;
    }

    fflush(stdout);
    child = fork();
    if (child == 0) {
        _exit(child_fails(handle, config) ? 0 : 1);
    }
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the child ended with %x\n", status);
        return 1;
    }
    printf("forked\n");
    check("close", slipstream_close(with_other));
    check("close", slipstream_close(handle));

    change(argv[3], argv[4]);
    baseline = descriptors();
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t guests[GUESTS];
        shared = open_handle(config);
        for (size_t i = 0; i < GUESTS; i++) {
            pthread_create(&guests[i], NULL, guest, (void *)i);
        }
        usleep(20000 * (unsigned)round);
        check("close", slipstream_close(shared));
        for (size_t i = 0; i < GUESTS; i++) {
            pthread_join(guests[i], NULL);
        }
        if (!threads_are(1) || descriptors() != baseline) {
            fprintf(stderr, "%d threads and %d descriptors are left of 1 and %d\n", threads(), descriptors(), baseline);
            return 1;
        }
    }
    printf("closed");
    for (int i = 0; i <= SLIPSTREAM_STATUS_INTERNAL; i++) {
        printf(" %d", counts[i]);
    }
    printf("\n");
    handle = open_handle(config);
    check("submit", submit_tokens(handle, "{\"max_tokens\": 200, \"ignore_eos\": true}", &id));
    return 0;
}
