/* Opens a handle while the system refuses a thread: the first that is asked for, then the second, and so on.
 *
 *   refused CONFIG
 *
 * Prints `refused N STATUS TEXT` for each that makes opening fail, `threads N` for how many an open handle has, and of a
 * handle whose process gets no more threads once it is open the ids of a completion as `ids ...`. After a failure nothing
 * may be left, and the next handle opens.
 */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

/* Threads until one is refused; 0: none is. Once refused, all are where `for_good`. */
static int until, for_good;

/* The linker takes this one for the library too. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &found, sizeof real);
    if (__atomic_load_n(&for_good, __ATOMIC_SEQ_CST)) {
        return EAGAIN;
    }
    if (__atomic_load_n(&until, __ATOMIC_SEQ_CST) > 0 && __atomic_sub_fetch(&until, 1, __ATOMIC_SEQ_CST) == 0) {
        return EAGAIN;
    }
    return real(thread, attributes, start, argument);
}

int main(int argc, char **argv)
{
    const char *config = argc > 1 ? argv[1] : "";
    static struct room room;
    uint64_t handle = open_handle(config);
    int open_fds, baseline;
    /* What is made once in a process, such as the table of instruction sets, is there now. */
    check("close", slipstream_close(handle));
    baseline = descriptors();
    for (int n = 1; n < 100; n++) {
        slipstream_status status;
        until = n;
        status = slipstream_open(config, strlen(config), &handle);
        if (status == SLIPSTREAM_STATUS_OK) {
            until = 0;
            break;
        }
        printf("refused %d %d %s\n", n, (int)status, last_error());
        if (handle != 0 || !threads_are(1) || descriptors() != baseline) {
            fprintf(stderr, "thread %d was refused: handle %llu, %d threads and %d descriptors of 1 and %d are left\n", n,
                    (unsigned long long)handle, threads(), descriptors(), baseline);
            return 1;
        }
        handle = open_handle(config);
        complete(handle, 1, &room);
        check("close", slipstream_close(handle));
    }
    printf("threads %d\n", threads() - 1);
    open_fds = descriptors();
    for_good = 1;
    /* More than the schedule watches before it decides. */
    complete(handle, 60, &room);
    printf("ids");
    for (size_t i = 0; i < room.event.tokens_len; i++) {
        printf(" %u", (unsigned)room.event.tokens[i]);
    }
    printf("\n");
    for_good = 0;
    if (descriptors() != open_fds) {
        fprintf(stderr, "descriptors were left behind\n");
        return 1;
    }
    check("close", slipstream_close(handle));
    return threads_are(1) && descriptors() == baseline ? 0 : 1;
}
