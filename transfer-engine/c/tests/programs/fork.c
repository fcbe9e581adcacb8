/* A program that forks while it has an engine. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static uint8_t bytes[64];
static uint64_t is_called, may_return;

/* Runs while the process is forked. */
static void watch(void *user_data, uint64_t old_value, uint64_t new_value) {
    EXPECT(user_data == NULL && old_value < new_value);
    __atomic_store_n(&is_called, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&may_return, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
}

static void calls_are_refused(weft_engine *engine, weft_mr *mr, weft_operation *pending,
                              weft_watcher *watcher) {
    weft_mr *other = NULL;
    weft_operation *operation = NULL;
    REFUSED(weft_reg_mr(engine, bytes, 64, 0, &other), WEFT_FORKED, "forked from");
    REFUSED(weft_expect_imm_count(engine, 2, 1, NULL, &operation), WEFT_FORKED, "forked from");
    REFUSED(weft_free_imm(engine, 2, NULL), WEFT_FORKED, "start an engine after the fork");
    REFUSED(weft_operation_wait(pending, WEFT_NO_TIMEOUT, NULL), WEFT_FORKED, "forked from");
    REFUSED(weft_operation_cancel(pending), WEFT_FORKED, "forked from");
    EXPECT(other == NULL && operation == NULL);
    weft_operation_free(pending);
    /* The word is memory of both. The thread that runs the handler is not here. */
    OK(weft_watcher_add(watcher, 1));
    EXPECT(weft_watcher_load(watcher) == 2);
    weft_watcher_free(watcher);
    /* Nothing here uses the memory. */
    OK(weft_dereg_mr(mr, WEFT_NO_TIMEOUT));
    OK(weft_engine_close(engine));
    weft_engine *own = start();
    OK(weft_engine_close(own));
}

int main(void) {
    weft_engine *engine = start();
    weft_mr *mr = NULL;
    weft_operation *pending = NULL;
    weft_options options = patient();
    OK(weft_reg_mr(engine, bytes, sizeof bytes, WEFT_ACCESS_ALL, &mr));
    OK(weft_expect_imm_count(engine, 1, 1, &options, &pending));
    weft_watcher *watcher = NULL;
    OK(weft_alloc_watcher(engine, watch, NULL, &watcher));
    OK(weft_watcher_add(watcher, 1));
    wait_for_word(&is_called);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        calls_are_refused(engine, mr, pending, watcher);
        _exit(0);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    __atomic_store_n(&may_return, 1, __ATOMIC_RELEASE);
    weft_watcher_free(watcher);
    /* The engine goes on here. */
    weft_address *peer = address_of(engine);
    weft_peer_group *group = NULL;
    const weft_address *members[1] = {peer};
    OK(weft_add_peer_group(engine, members, 1, &group));
    OK(weft_submit_barrier(engine, group, 1, &options, NULL));
    done(pending);
    weft_peer_group_free(group);
    weft_address_free(peer);
    OK(weft_dereg_mr(mr, PATIENCE_US));
    OK(weft_engine_close(engine));
    puts("fork: all as it should be");
    return 0;
}
