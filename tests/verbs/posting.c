// posting threads      Two threads post to one queue pair by ibv_wr_start, each alone until ibv_wr_complete or ibv_wr_abort.
// posting forks        Children that are forked while other threads call and poll: their calls fail with EIO, and none waits.
// posting outstanding  A queue takes as many work requests as it was made for, and more when completions were polled.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 1, DEPTH = 8, ROUNDS = 1000, CHILDREN = 100, TRIES = 100, PATIENCE = 20 };

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static struct ibv_mr *region;
static struct ibv_qp *pair, *peer;
// Two words that are written, the two that they are written to, and as much of a longer write.
enum { LONG_FROM = 4, LONG_TO = 20, LONG_BYTES = 100 };
static volatile uint64_t memory[36];

static void check_at(int line, int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
    _exit(1);
}
#define check(holds) check_at(__LINE__, holds, #holds)

static struct ibv_qp *make(void) {
    // Entries of 128 bytes take several slots of the ring, and the others one.
    struct ibv_qp_init_attr_ex wanted = {
        .send_cq = queue,
        .recv_cq = queue,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 128},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = domain,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
    };
    struct ibv_qp *made = ibv_create_qp_ex(context, &wanted);
    check(made != NULL);
    return made;
}

static void init(struct ibv_qp *of) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    check(ibv_modify_qp(of, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static void join(struct ibv_qp *of, const struct ibv_qp *to) {
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = to->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT},
    };
    check(ibv_query_gid(context, PORT, 0, &receive.ah_attr.grh.dgid) == 0);
    check(ibv_modify_qp(of, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    check(ibv_modify_qp(of, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_wc next(void) {
    struct ibv_wc completion;
    int found;
    while ((found = ibv_poll_cq(queue, 1, &completion)) == 0) sched_yield();
    check(found == 1);
    check(completion.status == IBV_WC_SUCCESS);
    return completion;
}

static atomic_int inside;
static atomic_long done[2];

static void *post_all(void *number) {
    long me = (long)number, posted = 0;
    struct ibv_qp_ex *posting = ibv_qp_to_qp_ex(pair);
    for (long round = 0; round < ROUNDS; round++) {
        int is_taken_back = round % 8 == 7;
        ibv_wr_start(posting);
        check(atomic_fetch_add(&inside, 1) == 0);
        memory[me] = is_taken_back ? 0 : posted + 1;
        posting->wr_id = me;
        posting->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(posting, region->rkey, (uintptr_t)&memory[2 + me]);
        // The other has time to come in.
        for (int turn = 0; turn < 10; turn++) sched_yield();
        ibv_wr_set_sge(posting, region->lkey, (uintptr_t)&memory[me], sizeof memory[me]);
        atomic_fetch_sub(&inside, 1);
        if (is_taken_back) {
            ibv_wr_abort(posting);
            continue;
        }
        check(ibv_wr_complete(posting) == 0);
        posted++;
        while (atomic_load(&done[me]) < posted) sched_yield();
        check(memory[2 + me] == (uint64_t)posted);
    }
    return NULL;
}

static void threads(void) {
    pthread_t posters[2];
    for (long number = 0; number < 2; number++) check(pthread_create(&posters[number], NULL, post_all, (void *)number) == 0);
    for (long left = 2 * (ROUNDS - ROUNDS / 8); left > 0; left--) atomic_fetch_add(&done[next().wr_id], 1);
    for (int number = 0; number < 2; number++) check(pthread_join(posters[number], NULL) == 0);
    struct ibv_wc completion;
    check(ibv_poll_cq(queue, 1, &completion) == 0);
}

static atomic_int ends;
static atomic_long calls, polls;

static void *call(void *nothing) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr made;
    for (; !atomic_load(&ends); atomic_fetch_add(&calls, 1)) check(ibv_query_qp(pair, &attr, IBV_QP_STATE, &made) == 0);
    return nothing;
}

static void *poll_empty(void *nothing) {
    struct ibv_wc completion;
    for (; !atomic_load(&ends); atomic_fetch_add(&polls, 1)) check(ibv_poll_cq(queue, 1, &completion) == 0);
    return nothing;
}

static void be_child(void) {
    struct ibv_device_attr device;
    union ibv_gid gid;
    struct ibv_qp_init_attr wanted = {
        .send_cq = queue,
        .recv_cq = queue,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    // Who waits is killed, and so found.
    alarm(PATIENCE);
    errno = 0;
    check(ibv_reg_mr(domain, (void *)memory, sizeof memory, 0) == NULL && errno == EIO);
    errno = 0;
    check(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == -1 && errno == EIO);
    errno = 0;
    check(ibv_create_comp_channel(context) == NULL && errno == EIO);
    errno = 0;
    check(ibv_create_qp(domain, &wanted) == NULL && errno == EIO);
    check(ibv_resize_cq(queue, 4 * DEPTH) == EIO);
    // What the parent was told is still known.
    check(ibv_query_device(context, &device) == 0 && device.max_qp > 0);
    check(ibv_query_gid(context, PORT, 0, &gid) == 0 && gid.raw[15] != 0);
    _exit(0);
}

static void forks(void) {
    pthread_t caller, poller;
    check(pthread_create(&caller, NULL, call, NULL) == 0);
    check(pthread_create(&poller, NULL, poll_empty, NULL) == 0);
    while (atomic_load(&calls) == 0 || atomic_load(&polls) == 0) sched_yield();
    for (int number = 0; number < CHILDREN; number++) {
        int status;
        pid_t child = fork();
        check(child >= 0);
        if (child == 0) be_child();
        check(waitpid(child, &status, 0) == child);
        check(status == 0);
    }
    atomic_store(&ends, 1);
    check(pthread_join(caller, NULL) == 0);
    check(pthread_join(poller, NULL) == 0);
}

static int post_write(uint64_t value, unsigned flags) {
    struct ibv_sge entry = {.addr = (uintptr_t)&memory[0], .length = sizeof memory[0], .lkey = region->lkey};
    struct ibv_send_wr request = {.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = flags}, *bad;
    request.wr.rdma.remote_addr = (uintptr_t)&memory[2];
    request.wr.rdma.rkey = region->rkey;
    memory[0] = value;
    return ibv_post_send(pair, &request, &bad);
}

// Its entry takes more slots of the ring than that of another write.
static int post_long(void) {
    struct ibv_sge entry = {.addr = (uintptr_t)&memory[LONG_FROM], .length = LONG_BYTES};
    struct ibv_send_wr request = {.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = (uintptr_t)&memory[LONG_TO];
    request.wr.rdma.rkey = region->rkey;
    return ibv_post_send(pair, &request, &bad);
}

static int post_by_parts(int count) {
    struct ibv_qp_ex *posting = ibv_qp_to_qp_ex(pair);
    ibv_wr_start(posting);
    posting->wr_flags = IBV_SEND_SIGNALED;
    for (int number = 0; number < count; number++) {
        ibv_wr_rdma_write(posting, region->rkey, (uintptr_t)&memory[2]);
        ibv_wr_set_sge(posting, region->lkey, (uintptr_t)&memory[0], sizeof memory[0]);
    }
    return ibv_wr_complete(posting);
}

static int post_receive(struct ibv_qp *to) {
    struct ibv_recv_wr request = {.num_sge = 0}, *bad;
    return ibv_post_recv(to, &request, &bad);
}

// A queue that is full stays full, whatever the engine does meanwhile.
static void sends_are_full(void) {
    for (int number = 0; number < TRIES; number++) {
        check(post_write(0, IBV_SEND_SIGNALED) == ENOMEM);
        sched_yield();
    }
}

static void receives_are_full(void) {
    for (int number = 0; number < TRIES; number++) {
        check(post_receive(peer) == ENOMEM);
        sched_yield();
    }
}

static void outstanding(void) {
    for (int number = 1; number <= DEPTH; number++) check(post_write(number, IBV_SEND_SIGNALED) == 0);
    sends_are_full();
    // All of one call, or none.
    next();
    check(post_by_parts(2) == ENOMEM);
    check(post_by_parts(1) == 0);
    sends_are_full();
    for (int number = 0; number < DEPTH; number++) next();
    // Of entries of several lengths, for as many rounds as use the ring again.
    for (int number = 0; number < DEPTH; number++) check((number % 3 ? post_write(number, IBV_SEND_SIGNALED) : post_long()) == 0);
    for (int round = 0; round < 100; round++) {
        sends_are_full();
        int taken = 1 + round % 3;
        for (int number = 0; number < taken; number++) next();
        for (int number = 0; number < taken; number++) check((round % 2 ? post_write(number, IBV_SEND_SIGNALED) : post_long()) == 0);
    }
    for (int number = 0; number < DEPTH; number++) next();
    // Those that ask for no completion are over with the next one that does.
    for (int number = 1; number < DEPTH; number++) check(post_write(number, 0) == 0);
    check(post_write(DEPTH, IBV_SEND_SIGNALED) == 0);
    sends_are_full();
    next();
    check(post_by_parts(DEPTH) == 0);
    sends_are_full();
    for (int number = 0; number < DEPTH; number++) next();

    for (int number = 0; number < DEPTH; number++) check(post_receive(peer) == 0);
    receives_are_full();
    struct ibv_send_wr request = {.num_sge = 0, .opcode = IBV_WR_SEND}, *bad;
    check(ibv_post_send(pair, &request, &bad) == 0);
    check(next().opcode == IBV_WC_RECV);
    check(post_receive(peer) == 0);
    receives_are_full();
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    check(ibv_modify_qp(peer, &reset, IBV_QP_STATE) == 0);
    init(peer);
    for (int number = 0; number < DEPTH; number++) check(post_receive(peer) == 0);
    receives_are_full();
}

int main(int count, char **words) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list != NULL && list[0] != NULL && count == 2);
    check((context = ibv_open_device(list[0])) != NULL);
    check((domain = ibv_alloc_pd(context)) != NULL);
    check((region = ibv_reg_mr(domain, (void *)memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
    check((queue = ibv_create_cq(context, 8 * DEPTH, NULL, NULL, 0)) != NULL);
    pair = make();
    peer = make();
    init(pair);
    init(peer);
    join(pair, peer);
    join(peer, pair);
    if (strcmp(words[1], "threads") == 0) threads();
    if (strcmp(words[1], "forks") == 0) forks();
    if (strcmp(words[1], "outstanding") == 0) outstanding();
    printf("done\n");
    return 0;
}
