// exchange listen CONNECTIONS  Waits for so many connections, and ends all of them when it gets SIGTERM.
// exchange connect ADDRESS     Makes a connection from each of its devices there, and ends with them.
//
// In each round the two ends of a connection send each other a message, and compare the one that they get. Between two rounds
// is a tenth of a second. Any failure ends the program with status 1, and so does a round that takes too long.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, TCP_PORT = 18515, WORDS = 512, TURN_US = 1000, REST_US = 100000, ROUND_S_MAX = 30 };

struct message {
    uint64_t round, is_last, words[WORDS];
};

struct address {
    union ibv_gid gid;
    uint32_t pair;
};

struct end {
    int socket;
    struct ibv_cq *queue;
    struct ibv_mr *region;
    struct ibv_qp *pair;
    // So many were sent, of which each is acknowledged, and so many have come: of the next round before this one's own is
    // acknowledged, where an engine was replaced.
    uint64_t sends, receives;
    // The next message may come before this round has ended here.
    struct message sent, received[2];
};

static void check_at(int line, int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
    exit(1);
}
#define check(holds) check_at(__LINE__, holds, #holds)

static volatile sig_atomic_t is_told_to_end;

static void end_with_this_round(int signal) {
    (void)signal;
    is_told_to_end = 1;
}

static void end_late(int signal) {
    (void)signal;
    static const char text[] = "a round takes too long\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

static void check_completion(const struct ibv_wc *completion) {
    if (completion->status == IBV_WC_SUCCESS) return;
    fprintf(stderr, "a work request failed: %s\n", ibv_wc_status_str(completion->status));
    exit(1);
}

static void make(struct end *end, struct ibv_context *context, struct ibv_pd *domain) {
    check((end->region = ibv_reg_mr(domain, end, sizeof *end, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    check((end->queue = ibv_create_cq(context, 4, NULL, NULL, 0)) != NULL);
    struct ibv_qp_init_attr wanted = {
        .send_cq = end->queue,
        .recv_cq = end->queue,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 1, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
    };
    check((end->pair = ibv_create_qp(domain, &wanted)) != NULL);
}

static struct ibv_sge entry(const struct end *end, const struct message *message) {
    return (struct ibv_sge){.addr = (uintptr_t)message, .length = sizeof *message, .lkey = end->region->lkey};
}

static void receive(struct end *end, uint64_t round) {
    struct ibv_sge into = entry(end, &end->received[round % 2]);
    struct ibv_recv_wr request = {.sg_list = &into, .num_sge = 1}, *bad;
    check(ibv_post_recv(end->pair, &request, &bad) == 0);
}

// With the other end, by its TCP connection.
static void join(struct end *end, struct ibv_context *context) {
    struct address own = {.pair = end->pair->qp_num}, other;
    check(ibv_query_gid(context, PORT, 0, &own.gid) == 0);
    check(send(end->socket, &own, sizeof own, 0) == sizeof own);
    check(recv(end->socket, &other, sizeof other, MSG_WAITALL) == sizeof other);
    struct ibv_qp_attr begin = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    check(ibv_modify_qp(end->pair, &begin, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    receive(end, 0);
    struct ibv_qp_attr to = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = other.pair,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = other.gid, .hop_limit = 64}},
    };
    check(ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr ready = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    check(ibv_modify_qp(end->pair, &ready, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                               IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static uint64_t word(uint64_t round, int number) { return (round << 16) + number; }

static void begin_round(struct end *end, uint64_t round, int is_last) {
    receive(end, round + 1);
    end->sent.round = round;
    end->sent.is_last = is_last;
    for (int number = 0; number < WORDS; number++) end->sent.words[number] = word(round, number);
    struct ibv_sge from = entry(end, &end->sent);
    struct ibv_send_wr request = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    check(ibv_post_send(end->pair, &request, &bad) == 0);
}

// Says whether it is the last one for the other end.
static int end_round(struct end *end, uint64_t round) {
    while (end->sends <= round || end->receives <= round) {
        struct ibv_wc completion;
        int found = ibv_poll_cq(end->queue, 1, &completion);
        check(found >= 0);
        if (found == 0) {
            usleep(TURN_US);
            continue;
        }
        check_completion(&completion);
        if (completion.opcode == IBV_WC_RECV) {
            end->receives++;
        } else {
            end->sends++;
        }
    }
    struct message *received = &end->received[round % 2];
    check(received->round == round);
    for (int number = 0; number < WORDS; number++) check(received->words[number] == word(round, number));
    // Nothing of it is taken for what comes there next.
    int is_last = received->is_last;
    memset(received, 0, sizeof *received);
    return is_last;
}

static double now_ms(void) {
    struct timespec now;
    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}

int main(int count, char **words) {
    check(count == 3);
    int listens = strcmp(words[1], "listen") == 0, devices = 0;
    if (listens) signal(SIGTERM, end_with_this_round);
    // The first process of a container meets no signal that it has no handler for.
    signal(SIGALRM, end_late);
    struct ibv_device **list = ibv_get_device_list(&devices);
    check(list != NULL && devices > 0);
    struct ibv_context **contexts = calloc(devices, sizeof *contexts);
    struct ibv_pd **domains = calloc(devices, sizeof *domains);
    for (int number = 0; number < devices; number++) {
        check((contexts[number] = ibv_open_device(list[number])) != NULL);
        check((domains[number] = ibv_alloc_pd(contexts[number])) != NULL);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    int listener = -1, ends_count = listens ? atoi(words[2]) : devices;
    if (listens) {
        check((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
        check(listen(listener, ends_count) == 0);
    } else {
        check(inet_pton(AF_INET, words[2], &address.sin_addr) == 1);
    }
    struct end *ends = calloc(ends_count, sizeof *ends);
    for (int number = 0; number < ends_count; number++) {
        struct end *end = &ends[number];
        if (listens) {
            check((end->socket = accept(listener, NULL, NULL)) >= 0);
        } else {
            check((end->socket = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
            check(connect(end->socket, (struct sockaddr *)&address, sizeof address) == 0);
        }
        make(end, contexts[number % devices], domains[number % devices]);
        join(end, contexts[number % devices]);
    }
    double longest = 0;
    uint64_t round = 0;
    for (int is_last = 0; !is_last; round++) {
        // The first one waits for programs that are still to come.
        if (round > 0) alarm(ROUND_S_MAX);
        double begun = now_ms();
        is_last = is_told_to_end;
        for (int number = 0; number < ends_count; number++) begin_round(&ends[number], round, is_last);
        for (int number = 0; number < ends_count; number++) is_last |= end_round(&ends[number], round);
        if (round == 0) {
            printf("%d connections exchange messages\n", ends_count);
            fflush(stdout);
        } else if (now_ms() - begun > longest) {
            longest = now_ms() - begun;
        }
        usleep(REST_US);
    }
    // The other ends go first: what they have sent is acknowledged as long as these are there.
    char nothing;
    for (int number = 0; listens && number < ends_count; number++) check(recv(ends[number].socket, &nothing, 1, 0) == 0);
    printf("%lu rounds, the longest took %.0f ms\n", (unsigned long)round, longest);
    return 0;
}
