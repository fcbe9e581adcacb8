/* Every operation, between engines of one process. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/mman.h>

static void a_write_sets_a_flag_and_counts_its_immediate(weft_engine *a, weft_engine *b) {
    static uint8_t from[70000];
    fill(from, sizeof from, 1);
    weft_mr *here = NULL, *there = NULL;
    OK(weft_reg_mr(a, from, sizeof from, WEFT_ACCESS_NONE, &here));
    EXPECT(weft_mr_address(here) == from && weft_mr_bytes(here) == sizeof from);
    OK(weft_alloc(b, 80000, &there));
    weft_descriptor *to = descriptor_of(there);
    const uint8_t *arrived = (const uint8_t *)weft_mr_address(there);
    EXPECT(arrived[500] == 0);

    uint64_t flag = 0;
    weft_options options = patient();
    options.flag = &flag;
    weft_single_write write = whole(here, to, 69000);
    write.source_offset = 1000;
    write.destination_offset = 500;
    write.immediate = 7;
    write.has_immediate = true;
    OK(weft_submit_single_write(a, &write, &options, NULL));
    wait_for_immediate(b, 7, 1);
    EXPECT(memcmp(arrived + 500, from + 1000, 69000) == 0 && arrived[499] == 0);
    EXPECT(wait_for_word(&flag) == WEFT_DONE);

    weft_imm_counter *counter = NULL;
    uint64_t count = 0;
    OK(weft_imm_counter_open(b, 7, &counter));
    EXPECT(weft_imm_counter_count(counter) == 1);
    OK(weft_free_imm(b, 7, &count));
    EXPECT(count == 1);
    weft_imm_counter_free(counter);

    weft_descriptor_free(to);
    OK(weft_dereg_mr(here, PATIENCE_US));
    OK(weft_dereg_mr(there, 0));
}

static void the_link_to_a_peer_is_named_with_the_reason(weft_engine *a, weft_engine *b) {
    weft_address *peer = address_of(b);
    char text[128], cut[5];
    OK(weft_peer_link(a, peer, text, sizeof text));
    EXPECT(strcmp(text, "shm: both engines are in one network namespace") == 0);
    OK(weft_peer_link(a, peer, cut, sizeof cut));
    EXPECT(strlen(cut) == 4 && strncmp(cut, text, 4) == 0);
    OK(weft_peer_link(b, peer, text, sizeof text));
    EXPECT(text[0] == 0);
    weft_address_free(peer);
}

static void a_program_that_polls_moves_its_bytes_itself(weft_engine *b) {
    weft_config config;
    memset(&config, 0, sizeof config);
    config.port_count = 4;
    config.program_polls = true;
    weft_engine *a = NULL;
    OK(weft_engine_start(&config, &a));
    REFUSED(weft_poll(b, NULL), WEFT_INVALID, "program_polls is false");
    weft_mr *here = NULL, *there = NULL;
    static uint8_t from[1000];
    OK(weft_reg_mr(a, from, sizeof from, WEFT_ACCESS_NONE, &here));
    OK(weft_alloc(b, 1000, &there));
    weft_descriptor *to = descriptor_of(there);
    uint64_t flag = 0;
    weft_options options = patient();
    options.flag = &flag;
    weft_single_write write = whole(here, to, 1000);
    OK(weft_submit_single_write(a, &write, &options, NULL));
    while (__atomic_load_n(&flag, __ATOMIC_ACQUIRE) == 0) {
        bool busy = false;
        OK(weft_poll(a, &busy));
    }
    EXPECT(flag == WEFT_DONE);
    /* To wait is to poll. */
    weft_operation *operation = NULL;
    options.flag = NULL;
    OK(weft_submit_single_write(a, &write, &options, &operation));
    done(operation);
    weft_descriptor_free(to);
    REFUSED(weft_dereg_mr(here, 1), WEFT_INVALID, "timeout_us must be 0");
    while (weft_dereg_mr(here, 0) == WEFT_TIMED_OUT) {
        OK(weft_poll(a, NULL));
    }
    OK(weft_dereg_mr(there, PATIENCE_US));
    OK(weft_engine_close(a));
}

struct ended {
    uint64_t code;
    char reason[32];
};

static void note_end(void *user_data, const weft_outcome *outcome) {
    struct ended *ended = (struct ended *)user_data;
    strncpy(ended->reason, outcome->reason, sizeof ended->reason - 1);
    __atomic_store_n(&ended->code, (uint64_t)outcome->code, __ATOMIC_RELEASE);
}

static void pages_go_where_the_lists_say_and_a_handler_is_called(weft_engine *a, weft_engine *b) {
    static uint8_t from[32 * 5000];
    fill(from, sizeof from, 2);
    weft_mr *here = NULL, *there = NULL;
    OK(weft_reg_mr(a, from, sizeof from, WEFT_ACCESS_NONE, &here));
    OK(weft_alloc(b, 16 * 8000, &there));
    weft_descriptor *to = descriptor_of(there);
    uint32_t from_pages[16], to_pages[16];
    for (uint32_t page = 0; page < 16; page++) {
        from_pages[page] = 2 * page;
        to_pages[page] = 15 - page;
    }
    weft_paged_writes write;
    memset(&write, 0, sizeof write);
    write.source = here;
    write.source_pages.indices = from_pages;
    write.source_pages.stride = 5000;
    write.source_pages.offset = 3;
    write.destination = to;
    write.destination_pages.indices = to_pages;
    write.destination_pages.stride = 8000;
    write.destination_pages.offset = 100;
    write.page_count = 16;
    write.page_bytes = 4096;
    write.immediate = 5;
    write.has_immediate = true;
    struct ended ended;
    memset(&ended, 0, sizeof ended);
    weft_options options = patient();
    options.handler = note_end;
    options.user_data = &ended;
    OK(weft_submit_paged_writes(a, &write, &options, NULL));
    wait_for_immediate(b, 5, 1);
    const uint8_t *arrived = (const uint8_t *)weft_mr_address(there);
    for (size_t page = 0; page < 16; page++) {
        const uint8_t *sent = from + 3 + 2 * page * 5000;
        EXPECT(memcmp(arrived + 100 + (15 - page) * 8000, sent, 4096) == 0);
    }
    EXPECT(wait_for_word(&ended.code) == WEFT_DONE && strcmp(ended.reason, "Done") == 0);
    weft_descriptor_free(to);
    OK(weft_dereg_mr(here, PATIENCE_US));
    OK(weft_dereg_mr(there, 0));
}

static void a_scatter_and_a_barrier_reach_every_peer(weft_engine *a, weft_engine *b) {
    weft_engine *c = start();
    weft_engine *peers[2] = {b, c};
    weft_address *addresses[2];
    weft_mr *there[2] = {NULL, NULL};
    weft_descriptor *to[2];
    uint8_t from[2000];
    fill(from, sizeof from, 3);
    weft_mr *here = NULL;
    OK(weft_reg_mr(a, from, sizeof from, WEFT_ACCESS_NONE, &here));
    weft_single_write writes[2];
    for (size_t peer = 0; peer < 2; peer++) {
        OK(weft_alloc(peers[peer], 1000, &there[peer]));
        to[peer] = descriptor_of(there[peer]);
        OK(weft_descriptor_address(to[peer], &addresses[peer]));
        writes[peer] = whole(here, to[peer], 900 + peer);
        writes[peer].source_offset = 1000 * peer;
        writes[peer].immediate = 10;
        writes[peer].has_immediate = true;
    }
    weft_peer_group *group = NULL;
    OK(weft_add_peer_group(a, (const weft_address *const *)addresses, 2, &group));
    weft_options options = patient();
    weft_operation *scatter = NULL, *barrier = NULL;
    OK(weft_submit_scatter(a, writes, 2, &options, &scatter));
    OK(weft_submit_barrier(a, group, 11, &options, &barrier));
    done(scatter);
    done(barrier);
    for (size_t peer = 0; peer < 2; peer++) {
        wait_for_immediate(peers[peer], 10, 1);
        wait_for_immediate(peers[peer], 11, 1);
        EXPECT(memcmp(weft_mr_address(there[peer]), from + 1000 * peer, 900 + peer) == 0);
        weft_address_free(addresses[peer]);
        weft_descriptor_free(to[peer]);
        OK(weft_dereg_mr(there[peer], 0));
    }
    weft_peer_group_free(group);
    OK(weft_dereg_mr(here, PATIENCE_US));
    OK(weft_engine_close(c));
}

static void a_read_brings_what_the_peer_has(weft_engine *a, weft_engine *b) {
    static uint8_t from[300000], into[300000];
    fill(from, sizeof from, 4);
    weft_mr *here = NULL, *there = NULL;
    OK(weft_reg_mr(b, from, sizeof from, WEFT_ACCESS_READ, &there));
    OK(weft_reg_mr(a, into, sizeof into, WEFT_ACCESS_WRITE, &here));
    weft_single_read read;
    memset(&read, 0, sizeof read);
    read.source = descriptor_of(there);
    read.source_offset = 1;
    read.destination = here;
    read.destination_offset = 2;
    read.bytes = 299000;
    weft_options options = patient();
    weft_operation *operation = NULL;
    OK(weft_submit_read(a, &read, &options, &operation));
    done(operation);
    EXPECT(memcmp(into + 2, from + 1, 299000) == 0 && into[0] == 0 && into[1] == 0);
    weft_descriptor_free((weft_descriptor *)read.source);
    OK(weft_dereg_mr(here, PATIENCE_US));
    OK(weft_dereg_mr(there, PATIENCE_US));
}

struct messages {
    uint64_t count;
    char text[3][16];
    uint64_t bytes[3];
    uint32_t immediate[3];
};

static void note_message(void *user_data, const void *message, uint64_t bytes,
                         const uint32_t *immediate) {
    struct messages *messages = (struct messages *)user_data;
    EXPECT(messages->count < 3 && bytes < 16);
    memcpy(messages->text[messages->count], message, bytes);
    messages->bytes[messages->count] = bytes;
    messages->immediate[messages->count] = immediate == NULL ? 0 : *immediate;
    __atomic_store_n(&messages->count, messages->count + 1, __ATOMIC_RELEASE);
}

static void messages_come_in_order_with_their_immediates(weft_engine *a, weft_engine *b) {
    static struct messages messages;
    OK(weft_submit_recvs(b, 64, 2, note_message, &messages));
    weft_address *peer = address_of(b);
    EXPECT(strstr(weft_address_name(peer), "127.0.0.1:") == weft_address_name(peer));
    weft_options options = patient();
    weft_operation *sent[3];
    weft_send send;
    memset(&send, 0, sizeof send);
    send.peer = peer;
    char first[] = "first";
    send.message = first;
    send.bytes = 5;
    OK(weft_submit_send(a, &send, &options, &sent[0]));
    memset(first, 'x', 5);
    send.message = NULL;
    send.bytes = 0;
    OK(weft_submit_send(a, &send, &options, &sent[1]));
    send.message = "third";
    send.bytes = 5;
    send.immediate = 9;
    send.has_immediate = true;
    OK(weft_submit_send(a, &send, &options, &sent[2]));
    for (size_t index = 0; index < 3; index++) {
        done(sent[index]);
    }
    while (__atomic_load_n(&messages.count, __ATOMIC_ACQUIRE) < 3) {
        sched_yield();
    }
    EXPECT(strcmp(messages.text[0], "first") == 0 && messages.immediate[0] == 0);
    EXPECT(messages.bytes[1] == 0 && messages.immediate[1] == 0);
    EXPECT(strcmp(messages.text[2], "third") == 0 && messages.immediate[2] == 9);
    weft_address_free(peer);
}

struct watched {
    uint64_t value;
    uint64_t calls;
};

static void note_change(void *user_data, uint64_t old_value, uint64_t new_value) {
    struct watched *watched = (struct watched *)user_data;
    EXPECT(watched->value == old_value && old_value != new_value);
    watched->calls++;
    __atomic_store_n(&watched->value, new_value, __ATOMIC_RELEASE);
}

static void wait_for_value(struct watched *watched, uint64_t value) {
    while (__atomic_load_n(&watched->value, __ATOMIC_ACQUIRE) != value) {
        sched_yield();
    }
}

static void a_watcher_tells_of_a_word_until_it_is_freed(weft_engine *a) {
    struct watched watched = {0, 0};
    weft_watcher *watcher = NULL;
    OK(weft_alloc_watcher(a, note_change, &watched, &watcher));
    OK(weft_watcher_add(watcher, 3));
    wait_for_value(&watched, 3);
    EXPECT(weft_watcher_load(watcher) == 3);
    /* As another process does. */
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, weft_watcher_fd(watcher), 0);
    EXPECT(page != MAP_FAILED);
    __atomic_add_fetch((uint64_t *)page, 4, __ATOMIC_RELEASE);
    wait_for_value(&watched, 7);
    weft_watcher_free(watcher);
    uint64_t calls = watched.calls;
    __atomic_add_fetch((uint64_t *)page, 1, __ATOMIC_RELEASE);
    /* The callback thread handles a second watcher after it would have seen that. */
    struct watched second = {0, 0};
    OK(weft_alloc_watcher(a, note_change, &second, &watcher));
    OK(weft_watcher_add(watcher, 1));
    wait_for_value(&second, 1);
    weft_watcher_free(watcher);
    EXPECT(watched.calls == calls && watched.value == 7);
    EXPECT(munmap(page, 4096) == 0);
}

static void an_engine_of_two_nics_encrypts_and_writes(void) {
    const char *nics[2] = {"127.0.0.1", "127.0.0.2"};
    weft_config config;
    memset(&config, 0, sizeof config);
    config.nics = nics;
    config.nic_count = 2;
    config.port_count = 4;
    config.first_port = 21000;
    config.last_port = 29999;
    config.encrypt = true;
    config.link = "udp";
    weft_engine *a = NULL, *b = NULL;
    OK(weft_engine_start(&config, &a));
    OK(weft_engine_start(&config, &b));
    size_t bytes = 3 << 20;
    uint8_t *from = (uint8_t *)malloc(bytes);
    fill(from, bytes, 6);
    weft_mr *here = NULL, *there = NULL;
    OK(weft_reg_mr(a, from, bytes, WEFT_ACCESS_NONE, &here));
    OK(weft_alloc(b, bytes, &there));
    weft_descriptor *to = descriptor_of(there);
    weft_single_write write = whole(here, to, bytes);
    write.immediate = 1;
    write.has_immediate = true;
    weft_options options = patient();
    weft_operation *operation = NULL;
    OK(weft_submit_single_write(a, &write, &options, &operation));
    wait_for_immediate(b, 1, 1);
    EXPECT(memcmp(weft_mr_address(there), from, bytes) == 0);
    done(operation);
    weft_counts counts;
    OK(weft_engine_counts(a, &counts));
    EXPECT(counts.peers == 1 && counts.operations == 0 && counts.regions == 1);
    EXPECT(counts.connections >= 2 && counts.counters == 0);
    weft_nic_pair pair;
    size_t pairs = 0;
    while (weft_engine_nic_pair(a, pairs, &pair) == WEFT_OK) {
        EXPECT(strncmp(pair.here, "127.0.0.", 8) == 0 && strncmp(pair.there, "127.0.0.", 8) == 0);
        EXPECT(pair.paths > 0 && pair.live_paths <= pair.paths && pair.lost_chunks <= pair.sent_chunks);
        pairs++;
    }
    EXPECT(pairs == 4);
    REFUSED(weft_engine_nic_pair(a, pairs, &pair), WEFT_OUT_OF_BOUNDS, "pairs of NICs");
    OK(weft_dereg_mr(here, PATIENCE_US));
    free(from);
    /* Handles may be freed after their engine. */
    OK(weft_engine_close(a));
    OK(weft_engine_close(b));
    weft_descriptor_free(to);
    OK(weft_dereg_mr(there, 0));
}

int main(void) {
    EXPECT(strcmp(weft_last_error(), "") == 0);
    weft_engine *a = start();
    weft_engine *b = start();
    a_write_sets_a_flag_and_counts_its_immediate(a, b);
    the_link_to_a_peer_is_named_with_the_reason(a, b);
    a_program_that_polls_moves_its_bytes_itself(b);
    pages_go_where_the_lists_say_and_a_handler_is_called(a, b);
    a_scatter_and_a_barrier_reach_every_peer(a, b);
    a_read_brings_what_the_peer_has(a, b);
    messages_come_in_order_with_their_immediates(a, b);
    a_watcher_tells_of_a_word_until_it_is_freed(a);
    an_engine_of_two_nics_encrypts_and_writes();
    OK(weft_engine_close(a));
    OK(weft_engine_close(b));
    puts("operations: all as it should be");
    return 0;
}
