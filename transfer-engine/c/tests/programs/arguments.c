/* What a program can do wrong: each call says which argument it is, and begins nothing. */
#include "check.h"

static void an_engine_refuses_its_settings(void) {
    weft_engine *engine = NULL;
    weft_config config;
    const char *nic = NULL;
    memset(&config, 0, sizeof config);
    REFUSED(weft_engine_start(NULL, NULL), WEFT_INVALID, "engine is NULL");
    config.nic_count = 1;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.nics is NULL");
    config.nics = &nic;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.nics[0] is NULL");
    nic = "eth0";
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.nics[0] is \"eth0\"");
    nic = "127.0.0.\xff";
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.nics[0] is not UTF-8");
    nic = "192.0.2.1"; /* RFC 5737: no machine has it */
    REFUSED(weft_engine_start(&config, &engine), WEFT_SYSTEM, "192.0.2.1:20000");
    config.nic_count = SIZE_MAX;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.nics has");
    memset(&config, 0, sizeof config);
    config.first_port = 30000;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.last_port is 0");
    config.last_port = 30001;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "ports");
    memset(&config, 0, sizeof config);
    config.mtu = 20;
    REFUSED(weft_engine_start(&config, &engine), WEFT_NIC, "");
    memset(&config, 0, sizeof config);
    config.link = "rdma";
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "link must be auto, network, udp, tcp, shm or xdp");
    memset(&config, 0, sizeof config);
    config.cpu_count = 1;
    REFUSED(weft_engine_start(&config, &engine), WEFT_INVALID, "config.cpus is NULL");
    EXPECT(engine == NULL && strlen(weft_last_error()) > 0);
}

static void names_are_checked(void) {
    EXPECT(strcmp(weft_status_name(WEFT_OUT_OF_BOUNDS), "WEFT_OUT_OF_BOUNDS") == 0);
    EXPECT(strcmp(weft_status_name(1), "(no status of Weft)") == 0);
    weft_address *address = NULL;
    weft_descriptor *descriptor = NULL;
    REFUSED(weft_address_parse(NULL, &address), WEFT_INVALID, "text is NULL");
    REFUSED(weft_address_parse("weft-engine1:AA", &address), WEFT_INVALID, "engine address");
    REFUSED(weft_address_parse("weft-engine1:AA", NULL), WEFT_INVALID, "address is NULL");
    REFUSED(weft_descriptor_parse("\xc3\x28", &descriptor), WEFT_INVALID, "text is not UTF-8");
    REFUSED(weft_descriptor_parse("", &descriptor), WEFT_INVALID, "region descriptor");
    REFUSED(weft_descriptor_address(NULL, &address), WEFT_INVALID, "descriptor is NULL");
    EXPECT(address == NULL && descriptor == NULL);
    EXPECT(weft_address_name(NULL) == NULL && weft_descriptor_bytes(NULL) == 0);
    weft_address_free(NULL);
    weft_descriptor_free(NULL);
}

static void memory_is_checked(weft_engine *a) {
    uint8_t bytes[64];
    weft_mr *mr = NULL;
    REFUSED(weft_reg_mr(NULL, bytes, 64, 0, &mr), WEFT_INVALID, "engine is NULL");
    REFUSED(weft_reg_mr(a, NULL, 64, 0, &mr), WEFT_INVALID, "memory is NULL");
    REFUSED(weft_reg_mr(a, bytes, 0, 0, &mr), WEFT_INVALID, "bytes is 0");
    REFUSED(weft_reg_mr(a, bytes, UINT64_MAX, 0, &mr), WEFT_INVALID, "bytes is 18446744073709551615");
    REFUSED(weft_reg_mr(a, bytes, 64, 8, &mr), WEFT_INVALID, "access is 0x8");
    REFUSED(weft_reg_mr(a, bytes, 64, 0, NULL), WEFT_INVALID, "mr is NULL");
    REFUSED(weft_reg_cuda_mr(NULL, 0, 4096, 64, 0, &mr), WEFT_INVALID, "engine is NULL");
    REFUSED(weft_reg_cuda_mr(a, 0, 4096, 0, 0, &mr), WEFT_INVALID, "bytes is 0");
    REFUSED(weft_reg_cuda_mr(a, 0, 4096, 64, 8, &mr), WEFT_INVALID, "access is 0x8");
    /* No machine has so many GPUs. Where there is a driver it says so itself. */
    EXPECT(weft_reg_cuda_mr(a, 4096, 4096, 64, 0, &mr) == WEFT_SYSTEM);
    EXPECT(strstr(weft_last_error(), "libcuda.so.1") || strstr(weft_last_error(), "cuDevice"));
    REFUSED(weft_alloc(a, 0, &mr), WEFT_INVALID, "bytes is 0");
    REFUSED(weft_alloc(a, UINT64_MAX / 2, &mr), WEFT_SYSTEM, "");
    EXPECT(mr == NULL);
    EXPECT(weft_mr_address(NULL) == NULL && weft_mr_descriptor(NULL) == NULL);
    OK(weft_dereg_mr(NULL, 0));
}

static void writes_and_reads_are_checked(weft_engine *a, weft_engine *b) {
    static uint8_t bytes[64];
    weft_mr *here = NULL, *there = NULL;
    OK(weft_reg_mr(a, bytes, 64, WEFT_ACCESS_NONE, &here));
    OK(weft_reg_mr(b, bytes, 64, WEFT_ACCESS_READ, &there));
    weft_descriptor *to = descriptor_of(there);
    weft_operation *operation = NULL;
    weft_single_write write = whole(here, to, 64);
    REFUSED(weft_submit_single_write(a, NULL, NULL, &operation), WEFT_INVALID, "write is NULL");
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_ACCESS_DENIED, "destination");
    write.source_offset = 1;
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_OUT_OF_BOUNDS, "source");
    write.source_offset = UINT64_MAX;
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_OUT_OF_BOUNDS, "source");
    write.bytes = 0;
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_INVALID, "bytes is 0");
    write.source = there;
    write.bytes = 1;
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_NOT_REGISTERED, "source");
    write.source = NULL;
    REFUSED(weft_submit_single_write(a, &write, NULL, &operation), WEFT_INVALID,
            "write.source is NULL");
    write.source = here;
    write.destination = NULL;
    REFUSED(weft_submit_scatter(a, &write, 1, NULL, &operation), WEFT_INVALID,
            "writes[0].destination is NULL");
    REFUSED(weft_submit_scatter(a, NULL, 1, NULL, &operation), WEFT_INVALID, "writes is NULL");
    REFUSED(weft_submit_scatter(a, NULL, 0, NULL, &operation), WEFT_INVALID, "writes is 0");

    weft_paged_writes pages;
    memset(&pages, 0, sizeof pages);
    pages.source = here;
    pages.destination = to;
    pages.page_bytes = 16;
    REFUSED(weft_submit_paged_writes(a, &pages, NULL, &operation), WEFT_INVALID, "pages is 0");
    pages.page_count = 1;
    REFUSED(weft_submit_paged_writes(a, &pages, NULL, &operation), WEFT_INVALID,
            "write.source_pages.indices is NULL");
    uint32_t index = 4;
    pages.source_pages.indices = &index;
    pages.source_pages.stride = 16;
    pages.destination_pages = pages.source_pages;
    REFUSED(weft_submit_paged_writes(a, &pages, NULL, &operation), WEFT_OUT_OF_BOUNDS, "source");

    weft_single_read read;
    memset(&read, 0, sizeof read);
    read.source = to;
    read.destination = here;
    read.bytes = 65;
    REFUSED(weft_submit_read(a, &read, NULL, &operation), WEFT_OUT_OF_BOUNDS, "source");
    read.bytes = 64;
    REFUSED(weft_submit_read(a, &read, NULL, &operation), WEFT_ACCESS_DENIED, "destination");

    weft_options options = patient();
    uint64_t words[2] = {0, 0};
    options.flag = (uint64_t *)(void *)((char *)words + 1);
    REFUSED(weft_connect(a, NULL, &options, &operation), WEFT_INVALID, "peer is NULL");
    weft_address *peer = address_of(b);
    REFUSED(weft_connect(a, peer, &options, &operation), WEFT_INVALID, "options.flag");
    EXPECT(operation == NULL);
    weft_counts counts;
    OK(weft_engine_counts(a, &counts));
    EXPECT(counts.operations == 0 && counts.peers == 0 && counts.regions == 1);

    OK(weft_dereg_mr(here, 0));
    OK(weft_dereg_mr(there, 0));
    weft_address_free(peer);
    weft_descriptor_free(to);
}

static void messages_and_counters_are_checked(weft_engine *a) {
    weft_operation *operation = NULL;
    weft_imm_counter *counter = NULL;
    weft_peer_group *group = NULL;
    weft_watcher *watcher = NULL;
    weft_send send;
    memset(&send, 0, sizeof send);
    REFUSED(weft_submit_send(a, NULL, NULL, &operation), WEFT_INVALID, "send is NULL");
    REFUSED(weft_submit_send(a, &send, NULL, &operation), WEFT_INVALID, "send.peer is NULL");
    send.peer = address_of(a);
    send.bytes = 1;
    REFUSED(weft_submit_send(a, &send, NULL, &operation), WEFT_INVALID, "send.message is NULL");
    weft_address_free((weft_address *)send.peer);
    REFUSED(weft_submit_recvs(a, 1, 1, NULL, NULL), WEFT_INVALID, "handler is NULL");
    const weft_address *nobody = NULL;
    REFUSED(weft_add_peer_group(a, &nobody, 1, &group), WEFT_INVALID, "peers[0] is NULL");
    REFUSED(weft_add_peer_group(a, NULL, 0, &group), WEFT_INVALID, "peers is 0");
    REFUSED(weft_submit_barrier(a, NULL, 1, NULL, &operation), WEFT_INVALID, "group is NULL");
    REFUSED(weft_expect_imm_count(NULL, 1, 1, NULL, &operation), WEFT_INVALID, "engine is NULL");
    REFUSED(weft_imm_counter_open(a, 1, NULL), WEFT_INVALID, "counter is NULL");
    REFUSED(weft_free_imm(NULL, 1, NULL), WEFT_INVALID, "engine is NULL");
    REFUSED(weft_alloc_watcher(a, NULL, NULL, &watcher), WEFT_INVALID, "handler is NULL");
    REFUSED(weft_watcher_add(NULL, 1), WEFT_INVALID, "watcher is NULL");
    REFUSED(weft_remove_peer(a, NULL), WEFT_INVALID, "peer is NULL");
    REFUSED(weft_peer_link(a, NULL, NULL, 0), WEFT_INVALID, "peer is NULL");
    REFUSED(weft_engine_counts(a, NULL), WEFT_INVALID, "counts is NULL");
    REFUSED(weft_operation_wait(NULL, 0, NULL), WEFT_INVALID, "operation is NULL");
    REFUSED(weft_operation_cancel(NULL), WEFT_INVALID, "operation is NULL");
    EXPECT(operation == NULL && counter == NULL && group == NULL && watcher == NULL);
    EXPECT(weft_imm_counter_count(NULL) == 0 && weft_watcher_load(NULL) == 0);
    EXPECT(weft_watcher_fd(NULL) == -1 && weft_main_address(NULL) == NULL);
    weft_operation_free(NULL);
    weft_imm_counter_free(NULL);
    weft_peer_group_free(NULL);
    weft_watcher_free(NULL);
    OK(weft_engine_close(NULL));
}

struct in_callback {
    weft_engine *engine;
    weft_mr *mr;
    weft_operation *pending;
    weft_watcher *watcher;
    uint64_t calls;
};

static void try_to_wait(void *user_data, uint64_t old_value, uint64_t new_value) {
    struct in_callback *in = (struct in_callback *)user_data;
    EXPECT(old_value == 0 && new_value == 1);
    REFUSED(weft_engine_close(in->engine), WEFT_INVALID, "weft_engine_close was called by a callback");
    REFUSED(weft_dereg_mr(in->mr, 1), WEFT_INVALID, "weft_dereg_mr was called by a callback");
    REFUSED(weft_operation_wait(in->pending, 1, NULL), WEFT_INVALID,
            "weft_operation_wait was called by a callback");
    REFUSED(weft_operation_wait(in->pending, 0, NULL), WEFT_TIMED_OUT, "has not ended");
    weft_watcher_free(in->watcher);
    __atomic_store_n(&in->calls, 1, __ATOMIC_RELEASE);
}

static void a_callback_may_free_its_watcher_but_not_wait(weft_engine *a) {
    static uint8_t bytes[64];
    struct in_callback in;
    memset(&in, 0, sizeof in);
    in.engine = a;
    weft_options options = patient();
    OK(weft_reg_mr(a, bytes, 64, WEFT_ACCESS_ALL, &in.mr));
    OK(weft_expect_imm_count(a, 77, 1, &options, &in.pending));
    OK(weft_alloc_watcher(a, try_to_wait, &in, &in.watcher));
    OK(weft_watcher_add(in.watcher, 1));
    wait_for_word(&in.calls);
    OK(weft_operation_cancel(in.pending));
    weft_operation_free(in.pending);
    OK(weft_dereg_mr(in.mr, 0));
}

static void a_handler_and_a_flag_exclude_each_other(weft_engine *a, weft_completion_handler handler) {
    weft_options options = patient();
    uint64_t flag = 0;
    options.flag = &flag;
    options.handler = handler;
    weft_operation *operation = NULL;
    REFUSED(weft_expect_imm_count(a, 1, 1, &options, &operation), WEFT_INVALID, "handler and a flag");
    EXPECT(operation == NULL && flag == 0);
}

static void is_not_called(void *user_data, const weft_outcome *outcome) {
    (void)user_data;
    fprintf(stderr, "called: %s\n", outcome->text);
    exit(1);
}

int main(void) {
    weft_engine *a = start();
    weft_engine *b = start();
    an_engine_refuses_its_settings();
    names_are_checked();
    memory_is_checked(a);
    writes_and_reads_are_checked(a, b);
    messages_and_counters_are_checked(a);
    a_callback_may_free_its_watcher_but_not_wait(a);
    a_handler_and_a_flag_exclude_each_other(a, is_not_called);
    OK(weft_engine_close(a));
    OK(weft_engine_close(b));
    puts("arguments: all as it should be");
    return 0;
}
