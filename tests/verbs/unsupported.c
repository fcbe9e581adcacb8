// Calls what virtual devices do not have, and says which calls fail otherwise than their manual pages have it: with NULL and
// EOPNOTSUPP in errno, with EOPNOTSUPP, or with -1 and EOPNOTSUPP in errno.
//
//   unsupported [LIBRARY null|number|minus NAME]...
//
// It makes the calls of verbs.h that are inline, and those of these names.
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 4096 };

static int failures;

static void check(int holds, const char *what) {
    if (holds) return;
    printf("%s\n", what);
    failures++;
}

#define IS_NULL(call) (errno = 0, check((call) == NULL && errno == EOPNOTSUPP, #call))
#define IS_NUMBER(call) check((call) == EOPNOTSUPP, #call)
#define IS_MINUS(call) (errno = 0, check((call) == -1 && errno == EOPNOTSUPP, #call))

static void of_context(struct ibv_context *context) {
    struct ibv_flow_action_esp_attr esp = {0};
    struct ibv_flow_action action = {.context = context};
    IS_NULL(ibv_create_flow_action_esp(context, &esp));
    IS_NUMBER(ibv_modify_flow_action_esp(&action, &esp));
    IS_NUMBER(ibv_destroy_flow_action(&action));
    struct ibv_flow flow = {.context = context};
    IS_NUMBER(ibv_destroy_flow(&flow));
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
    IS_NULL(ibv_open_xrcd(context, &xrcd));
    struct ibv_alloc_dm_attr dm_attr = {.length = SIZE};
    struct ibv_dm dm = {.context = context};
    IS_NULL(ibv_alloc_dm(context, &dm_attr));
    IS_NUMBER(ibv_free_dm(&dm));
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_td td = {.context = context};
    IS_NULL(ibv_alloc_td(context, &td_attr));
    IS_NUMBER(ibv_dealloc_td(&td));
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    IS_NUMBER(ibv_query_rt_values_ex(context, &values));
    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE};
    IS_NULL(ibv_open_qp(context, &open));
    struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1};
    struct ibv_wq wq = {.context = context};
    struct ibv_wq_attr wq_change = {0};
    IS_NULL(ibv_create_wq(context, &wq_attr));
    IS_NUMBER(ibv_modify_wq(&wq, &wq_change));
    IS_NUMBER(ibv_destroy_wq(&wq));
    struct ibv_rwq_ind_table_init_attr table_attr = {0};
    struct ibv_rwq_ind_table table = {.context = context};
    IS_NULL(ibv_create_rwq_ind_table(context, &table_attr));
    IS_NUMBER(ibv_destroy_rwq_ind_table(&table));
    struct ibv_counters_init_attr counters_attr = {0};
    struct ibv_counters counters = {.context = context};
    struct ibv_counter_attach_attr attach = {0};
    uint64_t value;
    IS_NULL(ibv_create_counters(context, &counters_attr));
    IS_NUMBER(ibv_destroy_counters(&counters));
    IS_NUMBER(ibv_attach_counters_point_flow(&counters, &attach, &flow));
    IS_NUMBER(ibv_read_counters(&counters, &value, 1, 0));
    struct ibv_cq_init_attr_ex queue = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    IS_NULL(ibv_create_cq_ex(context, &queue));
    queue = (struct ibv_cq_init_attr_ex){
        .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
    IS_NULL(ibv_create_cq_ex(context, &queue));
}

static void of_domain(struct ibv_pd *domain, struct ibv_pd *other) {
    static char memory[SIZE];
    struct ibv_context *context = domain->context;
    struct ibv_parent_domain_init_attr parent = {.pd = domain};
    IS_NULL(ibv_alloc_parent_domain(context, &parent));
    IS_NULL(ibv_alloc_mw(domain, IBV_MW_TYPE_1));
    IS_NULL(ibv_alloc_mw(domain, IBV_MW_TYPE_2));
    IS_NULL(ibv_alloc_null_mr(domain));
    struct ibv_dm dm = {.context = context};
    IS_NULL(ibv_reg_dm_mr(domain, &dm, 0, SIZE, IBV_ACCESS_ZERO_BASED));
    IS_NULL(ibv_reg_mr(domain, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
    IS_NULL(ibv_reg_mr(domain, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    struct ibv_mr *region = ibv_reg_mr(domain, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    check(region != NULL, "a region");
    struct ibv_sge entry = {.addr = (uintptr_t)memory, .length = SIZE, .lkey = region->lkey};
    IS_NUMBER(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &entry, 1));
    IS_MINUS(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
    check(ibv_dereg_mr(region) == 0, "ibv_dereg_mr");
}

static void of_queues(struct ibv_pd *domain, struct ibv_cq *queue) {
    struct ibv_context *context = domain->context;
    struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE};
    IS_NUMBER(ibv_modify_cq(queue, &moderation));
    struct ibv_srq_init_attr shared_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *shared = ibv_create_srq(domain, &shared_attr);
    check(shared != NULL, "a shared receive queue");
    uint32_t number;
    IS_NUMBER(ibv_get_srq_num(shared, &number));
    struct ibv_ops_wr operation = {0}, *bad;
    IS_NUMBER(ibv_post_srq_ops(shared, &operation, &bad));
    IS_NUMBER(ibv_modify_srq(shared, &shared_attr.attr, IBV_SRQ_MAX_WR));
    struct ibv_srq_init_attr_ex shared_ex = {
        .attr = {.max_wr = 4, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .pd = domain};
    shared_ex.srq_type = IBV_SRQT_XRC;
    IS_NULL(ibv_create_srq_ex(context, &shared_ex));
    shared_ex.srq_type = IBV_SRQT_TM;
    IS_NULL(ibv_create_srq_ex(context, &shared_ex));

    struct ibv_qp_init_attr wanted = {
        .send_cq = queue, .recv_cq = queue, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    enum ibv_qp_type types[] = {IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_DRIVER};
    for (size_t at = 0; at < sizeof types / sizeof *types; at++) {
        wanted.qp_type = types[at];
        IS_NULL(ibv_create_qp(domain, &wanted));
    }
    wanted.qp_type = IBV_QPT_UD;
    wanted.srq = shared;
    IS_NULL(ibv_create_qp(domain, &wanted));
    struct ibv_qp_init_attr_ex extended = {
        .send_cq = queue, .recv_cq = queue, .cap = wanted.cap, .qp_type = IBV_QPT_RC, .pd = domain};
    uint64_t operations[] = {IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO};
    for (size_t at = 0; at < sizeof operations / sizeof *operations; at++) {
        extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        extended.send_ops_flags = operations[at];
        IS_NULL(ibv_create_qp_ex(context, &extended));
    }
    uint32_t fields[] = {
        IBV_QP_INIT_ATTR_XRCD, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH};
    for (size_t at = 0; at < sizeof fields / sizeof *fields; at++) {
        extended.comp_mask = IBV_QP_INIT_ATTR_PD | fields[at];
        IS_NULL(ibv_create_qp_ex(context, &extended));
    }
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    extended.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    IS_NULL(ibv_create_qp_ex(context, &extended));

    wanted.qp_type = IBV_QPT_RC;
    wanted.srq = NULL;
    struct ibv_qp *pair = ibv_create_qp(domain, &wanted);
    check(pair != NULL, "a queue pair");
    struct ibv_flow_attr flow = {0};
    IS_NULL(ibv_create_flow(pair, &flow));
    struct ibv_qp_rate_limit_attr rate = {0};
    IS_NUMBER(ibv_modify_qp_rate_limit(pair, &rate));
    check(ibv_destroy_qp(pair) == 0 && ibv_destroy_srq(shared) == 0, "ibv_destroy_qp");
}

// No call of these looks at its arguments.
static void by_name(const char *library, const char *how, const char *name) {
    void *opened = dlopen(library, RTLD_NOW);
    long (*call)(long, long, long, long, long, long) = opened ? (long (*)(long, long, long, long, long, long))dlsym(opened, name) : NULL;
    if (!call) {
        check(0, name);
        return;
    }
    errno = 0;
    long answer = call(0, 0, 0, 0, 0, 0);
    if (strcmp(how, "number") == 0)
        check((int)answer == EOPNOTSUPP, name);
    else
        check(answer == (strcmp(how, "null") == 0 ? 0 : -1) && errno == EOPNOTSUPP, name);
}

int main(int count, char **words) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;
    struct ibv_pd *domain = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_pd *other = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *queue = context ? ibv_create_cq(context, 4, NULL, NULL, 0) : NULL;
    if (!domain || !other || !queue) return 1;
    of_context(context);
    of_domain(domain, other);
    of_queues(domain, queue);
    for (int at = 1; at + 2 < count; at += 3) by_name(words[at], words[at + 1], words[at + 2]);
    return failures != 0;
}
