"""Asynchronous events of a device, each taken as ibv_get_async_event(3) says."""

import ctypes
import errno
import os
import threading
import unittest

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

NAME = "weft0"
RECEIVES = 8
BYTES = 64


class Device:
    """An open device, and two queue pairs that are connected to each other: the second one can only receive."""

    def __init__(self, completions=64, context=None):
        self.context = context or Context(name=NAME)
        self.pd = PD(self.context)
        self.mr = MR(self.pd, BYTES, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.cq = CQ(self.context, completions)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=RECEIVES, max_sge=1)))
        cap = QPCap(max_send_wr=16, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        sharing = QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, srq=self.srq)
        self.sender, self.receiver = QP(self.pd, sharing), QP(self.pd, sharing)
        self.receiver.to_rtr(self.to(self.sender))
        self.sender.to_rts(self.to(self.receiver))

    def to(self, peer):
        route = GlobalRoute(dgid=self.context.query_gid(1, 0), sgid_index=0)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp_num
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        return attr

    def sge(self):
        return SGE(self.mr.buf, BYTES, self.mr.lkey)

    def post_receives(self, count):
        for _ in range(count):
            self.srq.post_recv(RecvWR(num_sge=1, sg=[self.sge()]))

    def post(self, opcode=e.IBV_WR_SEND, rkey=None):
        wr = SendWR(opcode=opcode, num_sge=1, sg=[self.sge()])
        wr.set_wr_rdma(self.mr.rkey if rkey is None else rkey, self.mr.buf)
        self.sender.post_send(wr)

    def poll(self, count):
        found = []
        while len(found) < count:
            found += self.cq.poll(count - len(found))[1]
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in found), found

    def next_event(self):
        event = self.context.get_async_event()
        event.ack()
        return event.event_type


def state(to):
    return QPAttr(qp_state=to, cur_qp_state=e.IBV_QPS_RESET)


class Events(unittest.TestCase):
    def assert_refused(self, number, call, *arguments):
        with self.assertRaises(PyverbsRDMAError) as raised:
            call(*arguments)
        self.assertEqual(raised.exception.error_code, number)

    def test_the_first_message_before_the_program_can_send_establishes_the_communication(self):
        device = Device()
        device.post_receives(2)
        device.post()
        device.post()
        device.poll(4)
        self.assertEqual(device.next_event(), e.IBV_EVENT_COMM_EST)
        # There is no second one: the next event is that of an error.
        device.receiver.modify(state(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self.assertEqual(device.next_event(), e.IBV_EVENT_QP_LAST_WQE_REACHED)

    def test_a_queue_pair_that_fails_takes_no_more_from_its_shared_receive_queue(self):
        device = Device()
        device.post(e.IBV_WR_RDMA_WRITE, rkey=device.mr.rkey ^ 1)
        count, found = 0, []
        while count == 0:
            count, found = device.cq.poll()
        self.assertEqual(found[0].status, e.IBV_WC_REM_ACCESS_ERR)
        self.assertEqual(device.next_event(), e.IBV_EVENT_QP_LAST_WQE_REACHED)
        self.assertEqual(device.sender.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR)

    def test_a_send_queue_says_when_it_is_drained_and_stands_still(self):
        device = Device()
        drain = state(e.IBV_QPS_SQD)
        drain.en_sqd_async_notify = 1
        device.post(e.IBV_WR_RDMA_WRITE)
        device.sender.modify(drain, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        self.assertEqual(device.next_event(), e.IBV_EVENT_SQ_DRAINED)
        before = device.cq.poll()[0]
        device.post(e.IBV_WR_RDMA_WRITE)
        self.assertEqual(device.cq.poll()[0], 0)
        device.sender.modify(state(e.IBV_QPS_RTS), e.IBV_QP_STATE)
        device.poll(2 - before)

    def test_a_shared_receive_queue_says_when_it_has_fewer_receives_than_its_limit(self):
        device = Device()
        device.post_receives(4)
        device.srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
        self.assertEqual(device.srq.query().srq_limit, 3)
        device.post()
        device.poll(2)
        self.assertEqual(device.next_event(), e.IBV_EVENT_COMM_EST)
        self.assertEqual(device.srq.query().srq_limit, 3)
        device.post()
        device.poll(2)
        self.assertEqual(device.next_event(), e.IBV_EVENT_SRQ_LIMIT_REACHED)
        self.assertEqual(device.srq.query().srq_limit, 0)
        # A limit that is not met is reached at once.
        device.srq.modify(SrqAttr(srq_limit=RECEIVES), e.IBV_SRQ_LIMIT)
        self.assertEqual(device.next_event(), e.IBV_EVENT_SRQ_LIMIT_REACHED)

    def test_a_limit_beyond_the_queue_and_another_size_are_refused(self):
        device = Device()
        srq = device.srq
        refused = (errno.EINVAL, srq.modify, SrqAttr(srq_limit=RECEIVES + 1), e.IBV_SRQ_LIMIT)
        self.assert_refused(*refused)
        self.assert_refused(errno.EOPNOTSUPP, srq.modify, SrqAttr(max_wr=4), e.IBV_SRQ_MAX_WR)
        self.assert_refused(errno.EINVAL, srq.modify, SrqAttr(), 1 << 7)

    def test_a_bad_receive_puts_its_shared_receive_queue_in_error(self):
        device = Device()
        bad = SGE(device.mr.buf, BYTES, device.mr.lkey ^ 1)
        device.srq.post_recv(RecvWR(num_sge=1, sg=[bad]))
        self.assertEqual(device.next_event(), e.IBV_EVENT_SRQ_ERR)

    def test_a_child_cannot_use_its_parent_s_device_and_closes_it_for_itself_only(self):
        context = Context(name=NAME)
        child = os.fork()
        if child == 0:
            try:
                PD(context)
            except PyverbsRDMAError as refused:
                context.close()
                os._exit(refused.error_code != errno.EIO)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        device = Device(context=context)
        device.post_receives(1)
        device.post()
        device.poll(2)
        self.assertEqual(device.next_event(), e.IBV_EVENT_COMM_EST)

    def test_a_completion_queue_that_overflows_and_the_device_with_it_say_so(self):
        device = Device(completions=1)
        for _ in range(4):
            device.post(e.IBV_WR_RDMA_WRITE)
        self.assertEqual(device.next_event(), e.IBV_EVENT_CQ_ERR)
        self.assertEqual(device.next_event(), e.IBV_EVENT_DEVICE_FATAL)

    def test_an_object_is_not_destroyed_before_its_events_are_acknowledged(self):
        # By ctypes, which runs other threads meanwhile: pyverbs does not.
        verbs = ctypes.CDLL("libibverbs.so.1")
        for name in "get_device_list open_device alloc_pd create_srq".split():
            getattr(verbs, f"ibv_{name}").restype = ctypes.c_void_p
        words = ctypes.c_uint32 * 8
        device = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))[0]
        context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(device)))
        pd = ctypes.c_void_p(verbs.ibv_alloc_pd(context))
        # No context of the program's; max_wr, max_sge and srq_limit.
        srq = ctypes.c_void_p(verbs.ibv_create_srq(pd, ctypes.byref(words(0, 0, RECEIVES, 1, 0))))
        limit = words(RECEIVES, 1, RECEIVES)
        self.assertEqual(verbs.ibv_modify_srq(srq, ctypes.byref(limit), e.IBV_SRQ_LIMIT), 0)
        event = (ctypes.c_uint64 * 2)()
        self.assertEqual(verbs.ibv_get_async_event(context, ctypes.byref(event)), 0)
        self.assertEqual(list(event), [srq.value, e.IBV_EVENT_SRQ_LIMIT_REACHED])
        destroyed = []
        destroy = threading.Thread(target=lambda: destroyed.append(verbs.ibv_destroy_srq(srq)))
        destroy.start()
        destroy.join(timeout=0.5)
        self.assertEqual(destroyed, [])
        verbs.ibv_ack_async_event(ctypes.byref(event))
        destroy.join()
        self.assertEqual(destroyed, [0])


unittest.main()
