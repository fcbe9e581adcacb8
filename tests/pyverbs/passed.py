"""Runs tests of rdma-core, which are in `tests`, and prints the name of each that passes.

`/usr/bin/python3 passed.py --dev weft0 --gid 0`
"""

import runpy
import sys
import unittest

# The modules that are not of one vendor's NIC. The others there are for what no virtual device has: flows, RSS, tag matching,
# on-demand paging, GPU memory, and for librdmacm a network interface of the device.
MODULES = """
    test_addr test_atomic test_cq test_cq_events test_cqex test_device test_fork test_mr test_parent_domain test_pd test_qp
    test_qpex test_relaxed_ordering test_shared_pd
"""


class Result(unittest.TextTestResult):
    def addSuccess(self, test):
        super().addSuccess(test)
        print("passed", test.id(), flush=True)


unittest.TextTestRunner.resultclass = Result
sys.path.insert(0, "tests")
sys.argv += MODULES.split()
runpy.run_path("tests/run_tests.py", run_name="__main__")
