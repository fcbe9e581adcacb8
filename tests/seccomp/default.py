"""Runs a program under the default seccomp profile of container runtimes: default.py PROGRAM [ARGUMENT...]

The profile lists the calls that are allowed. These are the others, as far as programs could use them: those that the default
profile of containerd refuses to a container without capabilities on x86-64, in any of its releases.
"""

import errno
import os
import socket
import sys

import seccomp

REFUSED = """
acct add_key bpf chroot clock_adjtime clock_settime create_module delete_module fanotify_init finit_module fsconfig fsmount
fsopen fspick get_kernel_syms get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages
name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise
process_vm_readv process_vm_writev ptrace query_module quotactl reboot request_key set_mempolicy setdomainname sethostname
setns settimeofday swapoff swapon sysfs umount2 unshare userfaultfd uselib ustat vhangup
"""
# CLONE_NEWNS, and those for cgroups, host names, IPC, users, PIDs and the network.
NEW_NAMESPACES = [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]

profile = seccomp.SyscallFilter(seccomp.ALLOW)
refused = seccomp.ERRNO(errno.EPERM)
for call in REFUSED.split():
    profile.add_rule(refused, call)
for flag in NEW_NAMESPACES:
    profile.add_rule(refused, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
# Its flags lie in memory, where a filter cannot look: the C library then calls clone.
profile.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
profile.add_rule(refused, "socket", seccomp.Arg(0, seccomp.EQ, socket.AF_VSOCK))
profile.load()
os.execvp(sys.argv[1], sys.argv[1:])
