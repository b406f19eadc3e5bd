/* Opens and closes CYCLES times and prints what the process holds: after the first cycles, and after the last.
 *
 *   cycles CONFIG BAD_CONFIG CYCLES [SAMPLE...]
 *
 * Each cycle opens two handles at once, has either complete four tokens, fails to open BAD_CONFIG, and closes all.
 * Lines: `open workers N` with both handles open, and `cycle N used BYTES rss KIB threads N fds N` after each of the
 * samples: bytes that are allocated, and memory that the process has, which the allocator may keep.
 */
#include "host.h"

#include <malloc.h>

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

int main(int argc, char **argv)
{
    const char *config = argv[1], *bad = argv[2];
    int cycles = atoi(argv[3]);
    for (int cycle = 1; cycle <= cycles; cycle++) {
        static struct room room;
        uint64_t first = open_handle(config), second = open_handle(config), none;
        complete(first, 4, &room);
        complete(second, 4, &room);
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
                       resident_kib(), threads(), descriptors());
            }
        }
    }
    return 0;
}
