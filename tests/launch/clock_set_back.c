/* A library that, preloaded, sets the clock an hour back once a file called set-back is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, at);
    if (!code && id == CLOCK_REALTIME && !access("set-back", F_OK)) at->tv_sec -= 3600;
    return code;
}
