import runpy
import sys
import unittest


class Result(unittest.TextTestResult):
    def addSuccess(self, test):
        super().addSuccess(test)
        print("passed", test.id(), flush=True)


unittest.TextTestRunner.resultclass = Result
sys.path.insert(0, "tests")
runpy.run_path("tests/run_tests.py", run_name="__main__")
