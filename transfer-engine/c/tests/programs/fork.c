/* A program that forks while it has an engine. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static uint8_t bytes[64];

static void calls_are_refused(weft_engine *engine, weft_mr *mr, weft_operation *pending) {
    weft_mr *other = NULL;
    weft_operation *operation = NULL;
    REFUSED(weft_reg_mr(engine, bytes, 64, 0, &other), WEFT_FORKED, "forked from");
    REFUSED(weft_expect_imm_count(engine, 2, 1, NULL, &operation), WEFT_FORKED, "forked from");
    REFUSED(weft_free_imm(engine, 2, NULL), WEFT_FORKED, "start an engine after the fork");
    REFUSED(weft_operation_wait(pending, WEFT_NO_TIMEOUT, NULL), WEFT_FORKED, "forked from");
    REFUSED(weft_operation_cancel(pending), WEFT_FORKED, "forked from");
    EXPECT(other == NULL && operation == NULL);
    weft_operation_free(pending);
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
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        calls_are_refused(engine, mr, pending);
        _exit(0);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
