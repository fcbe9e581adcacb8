/* Several threads use one engine, and one operation, at once; a callback submits while the engine is closed. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 50
#define BYTES 30000u

struct task {
    weft_engine *engine;
    weft_descriptor *to;
    uint8_t seed;
};

/* Writes to a place of its own, waits, and is told by the counter that all threads share. */
static void *write_again_and_again(void *argument) {
    struct task *task = (struct task *)argument;
    uint8_t *from = (uint8_t *)malloc(BYTES);
    fill(from, BYTES, task->seed);
    weft_mr *here = NULL;
    OK(weft_reg_mr(task->engine, from, BYTES, WEFT_ACCESS_NONE, &here));
    for (int round = 0; round < ROUNDS; round++) {
        weft_options options = patient();
        weft_operation *operation = NULL;
        weft_single_write write = whole(here, task->to, BYTES);
        write.destination_offset = (uint64_t)task->seed * BYTES;
        write.immediate = 5;
        write.has_immediate = true;
        OK(weft_submit_single_write(task->engine, &write, &options, &operation));
        done(operation);
    }
    OK(weft_dereg_mr(here, PATIENCE_US));
    free(from);
    return NULL;
}

static void *wait_for_it(void *argument) {
    weft_outcome outcome;
    OK(weft_operation_wait((weft_operation *)argument, WEFT_NO_TIMEOUT, &outcome));
    EXPECT(outcome.code == WEFT_REUSABLE);
    return NULL;
}

static void *cancel_it(void *argument) {
    OK(weft_operation_cancel((weft_operation *)argument));
    return NULL;
}

static void threads_share_an_engine(weft_engine *a, weft_engine *b) {
    weft_mr *there = NULL;
    OK(weft_alloc(b, THREADS * BYTES, &there));
    weft_descriptor *to = descriptor_of(there);
    pthread_t threads[THREADS];
    struct task tasks[THREADS];
    for (uint8_t at = 0; at < THREADS; at++) {
        tasks[at].engine = a;
        tasks[at].to = to;
        tasks[at].seed = at;
        EXPECT(pthread_create(&threads[at], NULL, write_again_and_again, &tasks[at]) == 0);
    }
    wait_for_immediate(b, 5, THREADS * ROUNDS);
    for (int at = 0; at < THREADS; at++) {
        EXPECT(pthread_join(threads[at], NULL) == 0);
    }
    uint8_t *expected = (uint8_t *)malloc(BYTES);
    for (uint8_t at = 0; at < THREADS; at++) {
        fill(expected, BYTES, at);
        const uint8_t *arrived = (const uint8_t *)weft_mr_address(there) + (size_t)at * BYTES;
        EXPECT(memcmp(arrived, expected, BYTES) == 0);
    }
    free(expected);
    weft_descriptor_free(to);
    OK(weft_dereg_mr(there, PATIENCE_US));
}

static void threads_wait_for_an_operation_that_others_cancel(weft_engine *engine) {
    for (int round = 0; round < ROUNDS; round++) {
        weft_options options = patient();
        weft_operation *operation = NULL;
        OK(weft_expect_imm_count(engine, 6, 1, &options, &operation));
        pthread_t threads[THREADS];
        for (int at = 0; at < THREADS; at++) {
            void *(*act)(void *) = at % 2 == 0 ? wait_for_it : cancel_it;
            EXPECT(pthread_create(&threads[at], NULL, act, operation) == 0);
        }
        for (int at = 0; at < THREADS; at++) {
            EXPECT(pthread_join(threads[at], NULL) == 0);
        }
        weft_operation_free(operation);
    }
}

static weft_engine *closing;
static uint64_t refused;

static void submit_again(void *user_data, const weft_outcome *outcome) {
    EXPECT(user_data == NULL && outcome->code == WEFT_FAILED);
    EXPECT(strcmp(outcome->reason, "EndedHere") == 0);
    weft_operation *operation = NULL;
    REFUSED(weft_expect_imm_count(closing, 7, 1, NULL, &operation), WEFT_CLOSED, "is closed");
    EXPECT(operation == NULL);
    __atomic_store_n(&refused, 1, __ATOMIC_RELEASE);
}

static void a_callback_that_submits_while_the_engine_is_closed_is_refused(void) {
    closing = start();
    weft_options options = patient();
    options.handler = submit_again;
    OK(weft_expect_imm_count(closing, 7, 1, &options, NULL));
    OK(weft_engine_close(closing));
    EXPECT(__atomic_load_n(&refused, __ATOMIC_ACQUIRE) == 1);
}

int main(void) {
    weft_engine *a = start(), *b = start();
    threads_share_an_engine(a, b);
    threads_wait_for_an_operation_that_others_cancel(a);
    a_callback_that_submits_while_the_engine_is_closed_is_refused();
    OK(weft_engine_close(a));
    OK(weft_engine_close(b));
    puts("threads: all as it should be");
    return 0;
}
