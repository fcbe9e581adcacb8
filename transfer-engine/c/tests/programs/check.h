/* What the programs here share. Each of them exits with 0 when all is as it should be. */
#ifndef CHECK_H
#define CHECK_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

/* Nothing here takes a tenth of this on an idle machine. */
#define PATIENCE_US 60000000u

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call)                                                                                   \
    do {                                                                                           \
        weft_status status_ = (call);                                                              \
        if (status_ != WEFT_OK) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, weft_status_name(status_),      \
                    weft_last_error());                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call fails with this status, and its message has these words. */
#define REFUSED(call, expected, words)                                                             \
    do {                                                                                           \
        weft_status status_ = (call);                                                              \
        if (status_ != (expected) || strstr(weft_last_error(), words) == NULL) {                   \
            fprintf(stderr, "%s:%d: %s instead of %s: %s\n", __FILE__, __LINE__,                   \
                    weft_status_name(status_), weft_status_name(expected), weft_last_error());     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline weft_engine *start(void) {
    weft_config config;
    memset(&config, 0, sizeof config);
    config.port_count = 4;
    config.cancel_timeout_us = 200000;
    weft_engine *engine = NULL;
    OK(weft_engine_start(&config, &engine));
    EXPECT(strncmp(weft_main_address(engine), "weft-engine1:", 13) == 0);
    return engine;
}

static inline weft_options patient(void) {
    weft_options options;
    memset(&options, 0, sizeof options);
    options.deadline_us = PATIENCE_US;
    return options;
}

static inline weft_descriptor *descriptor_of(const weft_mr *mr) {
    weft_descriptor *descriptor = NULL;
    OK(weft_descriptor_parse(weft_mr_descriptor(mr), &descriptor));
    EXPECT(weft_descriptor_bytes(descriptor) == weft_mr_bytes(mr));
    return descriptor;
}

static inline weft_address *address_of(const weft_engine *engine) {
    weft_address *address = NULL;
    OK(weft_address_parse(weft_main_address(engine), &address));
    return address;
}

/* A write of bytes at the beginning of a region to the beginning of another. */
static inline weft_single_write whole(const weft_mr *source, const weft_descriptor *destination,
                                      uint64_t bytes) {
    weft_single_write write;
    memset(&write, 0, sizeof write);
    write.source = source;
    write.destination = destination;
    write.bytes = bytes;
    return write;
}

/* Waits until the operation is done, and frees it. */
static inline void done(weft_operation *operation) {
    weft_outcome outcome;
    OK(weft_operation_wait(operation, WEFT_NO_TIMEOUT, &outcome));
    if (outcome.code != WEFT_DONE) {
        fprintf(stderr, "not done: %s\n", outcome.text);
        exit(1);
    }
    EXPECT(outcome.stage == WEFT_STAGE_DONE && outcome.peer == NULL && outcome.path == NULL);
    EXPECT(strcmp(outcome.reason, "Done") == 0);
    weft_operation_free(operation);
}

static inline void wait_for_immediate(weft_engine *engine, uint32_t immediate, uint64_t count) {
    weft_options options = patient();
    weft_operation *operation = NULL;
    OK(weft_expect_imm_count(engine, immediate, count, &options, &operation));
    done(operation);
}

/* Waits until another thread has set the word. Whoever has to set it does so by a deadline. */
static inline uint64_t wait_for_word(uint64_t *word) {
    uint64_t value;
    while ((value = __atomic_load_n(word, __ATOMIC_ACQUIRE)) == 0) {
        sched_yield();
    }
    return value;
}

static inline void fill(uint8_t *bytes, size_t count, uint8_t seed) {
    for (size_t at = 0; at < count; at++) {
        bytes[at] = (uint8_t)(at * 31 + at / 251 + seed);
    }
}

#endif
