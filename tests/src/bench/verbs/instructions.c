// instructions WRITES [polling]
//
// Writes 8 bytes so many times from one virtual device to another of the same node, or to itself where there is no other, in
// batches. A batch is posted one by one, and then taken from the completion queue one by one. Between the two the program
// sleeps, so nearly no poll finds the queue empty, or it polls all the time.
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 64, PORT = 1 };

struct end {
    struct ibv_cq *queue;
    struct ibv_mr *region;
    struct ibv_qp *pair;
    union ibv_gid gid;
    uint64_t memory;
};

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

static void make(struct end *end, struct ibv_device *device) {
    struct ibv_context *context = ibv_open_device(device);
    check(context != NULL, "ibv_open_device");
    check(ibv_query_gid(context, PORT, 0, &end->gid) == 0, "ibv_query_gid");
    struct ibv_pd *domain = ibv_alloc_pd(context);
    check(domain != NULL, "ibv_alloc_pd");
    end->region = ibv_reg_mr(domain, &end->memory, sizeof end->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(end->region != NULL, "ibv_reg_mr");
    end->queue = ibv_create_cq(context, 2 * BATCH, NULL, NULL, 0);
    check(end->queue != NULL, "ibv_create_cq");
    struct ibv_qp_init_attr wanted = {
        .send_cq = end->queue,
        .recv_cq = end->queue,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = BATCH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    end->pair = ibv_create_qp(domain, &wanted);
    check(end->pair != NULL, "ibv_create_qp");
}

static void join(struct end *end, const struct end *peer) {
    struct ibv_qp_attr begin = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    check(ibv_modify_qp(end->pair, &begin, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer->pair->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = peer->gid, .hop_limit = 64}},
    };
    check(ibv_modify_qp(end->pair, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    check(ibv_modify_qp(end->pair, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                              IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

int main(int count, char **words) {
    static struct end ends[2];
    long writes = count > 1 ? atol(words[1]) : 0;
    int sleeps = count < 3, devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    check(list != NULL && devices >= 1, "ibv_get_device_list");
    make(&ends[0], list[0]);
    make(&ends[1], list[devices > 1]);
    join(&ends[0], &ends[1]);
    join(&ends[1], &ends[0]);
    struct ibv_sge entry = {
        .addr = (uintptr_t)&ends[0].memory, .length = sizeof ends[0].memory, .lkey = ends[0].region->lkey};
    struct ibv_send_wr request = {.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    request.wr.rdma.remote_addr = (uintptr_t)&ends[1].memory;
    request.wr.rdma.rkey = ends[1].region->rkey;
    long empty = 0;
    for (long done = 0; done < writes; done += BATCH) {
        for (int posted = 0; posted < BATCH; posted++) {
            struct ibv_send_wr *bad;
            ends[0].memory = done + posted;
            check(ibv_post_send(ends[0].pair, &request, &bad) == 0, "ibv_post_send");
        }
        if (sleeps) usleep(1000);
        for (int polled = 0; polled < BATCH;) {
            struct ibv_wc completion;
            int found = ibv_poll_cq(ends[0].queue, 1, &completion);
            check(found >= 0, "ibv_poll_cq");
            if (found == 0) {
                empty++;
                if (sleeps) usleep(1000);
                continue;
            }
            check(completion.status == IBV_WC_SUCCESS, ibv_wc_status_str(completion.status));
            polled++;
        }
    }
    printf("%ld writes, %ld empty polls\n", writes, empty);
    return 0;
}
