/* Two processes: this one, and one that it starts. What is cancelled, what fails, and when memory may be freed. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 1000000u

static uint64_t messages;

static void note_message(void *user_data, const void *message, uint64_t bytes,
                         const uint32_t *immediate) {
    EXPECT(user_data == NULL && bytes == 4 && memcmp(message, "over", 4) == 0);
    EXPECT(immediate != NULL && *immediate == 3);
    __atomic_store_n(&messages, 1, __ATOMIC_RELEASE);
}

/* The peer: opens memory, prints its name, and ends when a message says so. */
static int peer(int out) {
    weft_engine *engine = start();
    weft_mr *mr = NULL;
    OK(weft_alloc(engine, BYTES, &mr));
    const char *name = weft_mr_descriptor(mr);
    EXPECT(write(out, name, strlen(name) + 1) == (ssize_t)strlen(name) + 1);
    wait_for_immediate(engine, 1, 1);
    uint8_t *bytes = (uint8_t *)weft_mr_address(mr);
    uint8_t *expected = (uint8_t *)malloc(BYTES);
    fill(expected, BYTES, 9);
    EXPECT(memcmp(bytes, expected, BYTES) == 0);
    free(expected);
    OK(weft_submit_recvs(engine, 64, 4, note_message, NULL));
    wait_for_word(&messages);
    OK(weft_dereg_mr(mr, PATIENCE_US));
    OK(weft_engine_close(engine));
    return 0;
}

static pid_t start_peer(weft_descriptor **memory) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        /* A test that fails leaves no process behind that holds its output. */
        EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        close(ends[0]);
        exit(peer(ends[1]));
    }
    close(ends[1]);
    static char name[8192];
    size_t length = 0;
    while (length < sizeof name) {
        ssize_t count = read(ends[0], name + length, sizeof name - length);
        EXPECT(count > 0);
        length += (size_t)count;
        if (name[length - 1] == 0) {
            break;
        }
    }
    close(ends[0]);
    OK(weft_descriptor_parse(name, memory));
    return child;
}

static void bytes_and_messages_go_to_another_process(void) {
    weft_descriptor *to = NULL;
    pid_t child = start_peer(&to);
    weft_engine *engine = start();
    static uint8_t from[BYTES], back[BYTES];
    fill(from, BYTES, 9);
    weft_mr *here = NULL, *into = NULL;
    OK(weft_reg_mr(engine, from, BYTES, WEFT_ACCESS_NONE, &here));
    OK(weft_reg_mr(engine, back, BYTES, WEFT_ACCESS_WRITE, &into));
    weft_options options = patient();
    weft_operation *operation = NULL;
    weft_single_write write = whole(here, to, BYTES);
    OK(weft_submit_single_write(engine, &write, &options, &operation));
    done(operation);
    weft_single_read read;
    memset(&read, 0, sizeof read);
    read.source = to;
    read.destination = into;
    read.bytes = BYTES;
    OK(weft_submit_read(engine, &read, &options, &operation));
    done(operation);
    EXPECT(memcmp(from, back, BYTES) == 0);
    weft_address *address = NULL;
    OK(weft_descriptor_address(to, &address));
    weft_peer_group *group = NULL;
    const weft_address *members[1] = {address};
    OK(weft_add_peer_group(engine, members, 1, &group));
    OK(weft_submit_barrier(engine, group, 1, &options, NULL));
    weft_send send;
    memset(&send, 0, sizeof send);
    send.peer = address;
    send.message = "over";
    send.bytes = 4;
    send.immediate = 3;
    send.has_immediate = true;
    OK(weft_submit_send(engine, &send, &options, &operation));
    done(operation);
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    /* Nobody answers there any more. */
    weft_outcome outcome;
    OK(weft_remove_peer(engine, address));
    OK(weft_submit_single_write(engine, &write, &options, &operation));
    OK(weft_operation_wait(operation, WEFT_NO_TIMEOUT, &outcome));
    EXPECT(outcome.code == WEFT_FAILED && outcome.stage == WEFT_STAGE_CONNECT);
    EXPECT(strcmp(outcome.peer, weft_address_name(address)) == 0 && outcome.path == NULL);
    EXPECT(strstr(outcome.text, outcome.peer) == outcome.text);
    /* Unless the engine of another program has the port by now. */
    if (strcmp(outcome.reason, "AnotherGeneration") != 0) {
        EXPECT(strcmp(outcome.reason, "Unreachable") == 0);
        EXPECT(strstr(outcome.text, "check that it runs") != NULL);
    }
    weft_operation_free(operation);

    weft_address_free(address);
    weft_peer_group_free(group);
    weft_descriptor_free(to);
    OK(weft_dereg_mr(here, PATIENCE_US));
    OK(weft_dereg_mr(into, PATIENCE_US));
    OK(weft_engine_close(engine));
}

static void what_nobody_sends_is_cancelled_and_reusable(void) {
    weft_engine *engine = start();
    weft_options options = patient();
    weft_operation *operation = NULL;
    weft_outcome outcome;
    OK(weft_expect_imm_count(engine, 1, 1, &options, &operation));
    REFUSED(weft_operation_wait(operation, 1000, &outcome), WEFT_TIMED_OUT, "has not ended");
    OK(weft_operation_cancel(operation));
    OK(weft_operation_wait(operation, WEFT_NO_TIMEOUT, &outcome));
    EXPECT(outcome.code == WEFT_REUSABLE && outcome.stage == WEFT_STAGE_COUNT);
    EXPECT(strcmp(outcome.reason, "Cancelled") == 0 && outcome.peer == NULL);
    weft_operation_free(operation);
    options.deadline_us = 1000;
    OK(weft_expect_imm_count(engine, 1, 1, &options, &operation));
    OK(weft_operation_wait(operation, WEFT_NO_TIMEOUT, &outcome));
    EXPECT(outcome.code == WEFT_REUSABLE && strcmp(outcome.reason, "DeadlinePassed") == 0);
    weft_operation_free(operation);
    OK(weft_engine_close(engine));
}

static void memory_of_a_stopped_write_stays_until_the_engine_lets_go_of_it(void) {
    weft_descriptor *to = NULL;
    pid_t child = start_peer(&to);
    weft_engine *engine = start();
    weft_address *address = NULL;
    OK(weft_descriptor_address(to, &address));
    weft_options options = patient();
    weft_operation *operation = NULL;
    OK(weft_connect(engine, address, &options, &operation));
    done(operation);
    int status = 0;
    EXPECT(kill(child, SIGSTOP) == 0);
    EXPECT(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));

    uint8_t *from = (uint8_t *)malloc(BYTES);
    fill(from, BYTES, 9);
    weft_mr *here = NULL;
    OK(weft_reg_mr(engine, from, BYTES, WEFT_ACCESS_NONE, &here));
    weft_single_write write = whole(here, to, BYTES);
    OK(weft_submit_single_write(engine, &write, &options, &operation));
    /* The write is under way, for the peer does not answer. It has been sent in part by then, on a busy machine too: what has
     * not begun would be reusable at once. */
    REFUSED(weft_dereg_mr(here, 200000), WEFT_TIMED_OUT, "refer to the memory of mr");
    REFUSED(weft_submit_single_write(engine, &write, NULL, NULL), WEFT_NOT_REGISTERED,
            "write.source was deregistered");
    weft_outcome outcome;
    OK(weft_operation_cancel(operation));
    OK(weft_operation_wait(operation, WEFT_NO_TIMEOUT, &outcome));
    EXPECT(outcome.code == WEFT_UNCONFIRMED && outcome.stage == WEFT_STAGE_TRANSFER);
    EXPECT(strcmp(outcome.reason, "Cancelled") == 0);
    EXPECT(strcmp(outcome.peer, weft_address_name(address)) == 0);
    EXPECT(strstr(outcome.path, " -> ") != NULL);
    EXPECT(strstr(outcome.text, outcome.path) != NULL);
    weft_operation_free(operation);
    /* Not confirmed: the connection may still send the bytes again, until it ends. */
    OK(weft_remove_peer(engine, address));
    OK(weft_dereg_mr(here, PATIENCE_US));
    free(from);

    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    weft_address_free(address);
    weft_descriptor_free(to);
    OK(weft_engine_close(engine));
}

static void note_end(void *user_data, const weft_outcome *outcome) {
    EXPECT(outcome->code == WEFT_FAILED && strcmp(outcome->reason, "EndedHere") == 0);
    *(uint64_t *)user_data = 1;
}

static void closing_an_engine_ends_its_operations_and_lets_go_of_its_memory(void) {
    weft_engine *a = start();
    weft_engine *b = start();
    weft_options options = patient();
    weft_operation *operation = NULL;
    weft_send send;
    memset(&send, 0, sizeof send);
    send.peer = address_of(b);
    OK(weft_connect(a, send.peer, &options, &operation));
    done(operation);
    /* It finds no receive. */
    uint64_t ended = 0;
    options.handler = note_end;
    options.user_data = &ended;
    OK(weft_submit_send(a, &send, &options, &operation));
    uint8_t bytes[64];
    weft_mr *mr = NULL;
    OK(weft_reg_mr(a, bytes, sizeof bytes, WEFT_ACCESS_ALL, &mr));
    OK(weft_engine_close(a));
    EXPECT(ended == 1);
    weft_outcome outcome;
    OK(weft_operation_wait(operation, 0, &outcome));
    EXPECT(outcome.code == WEFT_FAILED);
    weft_operation_free(operation);
    OK(weft_dereg_mr(mr, PATIENCE_US));
    weft_address_free((weft_address *)send.peer);
    OK(weft_engine_close(b));
}

int main(void) {
    /* They start processes, before this one has threads. */
    bytes_and_messages_go_to_another_process();
    memory_of_a_stopped_write_stays_until_the_engine_lets_go_of_it();
    what_nobody_sends_is_cancelled_and_reusable();
    closing_an_engine_ends_its_operations_and_lets_go_of_its_memory();
    puts("processes: all as it should be");
    return 0;
}
