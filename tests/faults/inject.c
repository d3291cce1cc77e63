/* Fail or kill one system call of a process: `inject CONTROL COMMAND...` runs COMMAND and traces it.
 *
 * A seccomp filter stops only the calls of the table in calls.h (written by injector.py), so other calls run at full
 * speed. CONTROL is a file that this program and injector.py map: injector.py chooses the failing call, and reads the
 * outcome. This program counts only calls of COMMAND's threads, not of programs that COMMAND starts. It also counts
 * each message of a netlink request. Such a "message" fails because inject gives it a type that the kernel does not
 * know; the kernel then executes the other messages of the request. See ptrace(2), seccomp(2), netlink(7).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "inject.c knows the registers of x86_64 only"
#endif

enum { MAX_LOG = 4000, MAX_PID = 1 << 22, KILL = -1, NOTHING = -2, UNKNOWN_TYPE = 0x7e };
enum { LAUNCHER = 1, INTERPRETER = 2, PLUGIN = 3, CREATES = 0x80 };     /* phases of a one-shot plugin file */

static const struct { long number; int errnos[6]; } calls[] = {
#include "calls.h"
};
enum { CALLS = sizeof calls / sizeof *calls, MESSAGE = CALLS };

static struct control {                 /* injector.py has the same layout */
    volatile int armed, at, variant;    /* variant: an index of the call's errnos, KILL or NOTHING */
    volatile int count, hit, error;     /* hit: the call's index + 1 */
    volatile int status, pid;           /* as waitpid(2) returned it */
    volatile unsigned short log[MAX_LOG];       /* phase << 8 | CREATES | the call's index */
} *control;

static pid_t plugin;                    /* the traced command */
static int phase;
static char file[4096];                 /* the command's file; the plugin begins when the interpreter reads this file */
static enum { UNSEEN, COUNTED, PASSED } seen[MAX_PID];
static struct { pid_t pid; void *at; unsigned short type; } altered;

static void die(const char *what)
{
    perror(what);
    if (plugin)
        kill(plugin, SIGKILL);
    exit(125);
}

static void start(char **command)
{
    struct sock_filter filter[CALLS * 2 + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    struct sock_fprog program = { CALLS * 2 + 2, filter };

    for (int i = 0; i < CALLS; i++) {
        filter[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
        filter[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    filter[CALLS * 2 + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (ptrace(PTRACE_TRACEME) || raise(SIGSTOP) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        die("trace");
    execv(command[0], command);
    die(command[0]);
}

static void read_link(pid_t pid, const char *name, char *target)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    ssize_t size = readlink(path, target, 4095);
    target[size < 0 ? 0 : size] = 0;
}

static int is_counted(pid_t pid)        /* whether it is a thread of the command */
{
    char path[64];
    if (seen[pid] == UNSEEN) {
        snprintf(path, sizeof path, "/proc/%d/task/%d", plugin, pid);
        seen[pid] = access(path, F_OK) ? PASSED : COUNTED;
    }
    return seen[pid] == COUNTED;
}

static int cannot_fail(long number, unsigned long command)
{
    if (number == SYS_fcntl)
        return command != F_DUPFD && command != F_DUPFD_CLOEXEC && command != F_SETLK && command != F_SETLKW
            && command != F_OFD_SETLK && command != F_OFD_SETLKW;
    return number == SYS_ioctl && (command & ~0x7full) == 0x5400;       /* terminals, FIOCLEX */
}

static int is_chosen(int call, int creates)     /* count this call; whether it is the one that fails */
{
    int at = control->count++;
    if (at < MAX_LOG)
        control->log[at] = phase << 8 | creates | call;
    if (control->hit || at + 1 != control->at || control->variant == NOTHING)
        return 0;
    control->hit = call + 1;
    return 1;
}

/* Return whether the kernel repeats the previous call. The kernel restarts a write to /proc/sys/net/.../forwarding
 * until the write gets the RTNL lock; the filter stops each restart: restart_syscall(), devinet_sysctl_forward(). */
static int is_restarted(pid_t pid, const struct user_regs_struct *now)
{
    static struct user_regs_struct last;
    static pid_t of;
    int same = now->orig_rax == SYS_write && pid == of && now->orig_rax == last.orig_rax && now->rip == last.rip
        && now->rsp == last.rsp && now->rdi == last.rdi && now->rsi == last.rsi && now->rdx == last.rdx;
    last = *now, of = pid;
    return same;
}

static int alter_message(pid_t pid, struct user_regs_struct *registers)
{
    static char data[1 << 20];
    struct iovec here = { data, registers->rdx }, there = { (void *)registers->rsi, registers->rdx };
    struct nlmsghdr *message = (struct nlmsghdr *)data;

    if (here.iov_len > sizeof data || process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)here.iov_len)
        return 0;
    for (unsigned left = here.iov_len; NLMSG_OK(message, left) && message->nlmsg_flags & NLM_F_REQUEST;
            message = NLMSG_NEXT(message, left)) {
        if (message->nlmsg_len == 20 && (message->nlmsg_type | 1) == 0x11)      /* begin and end of nf_tables' batch */
            continue;
        if (!is_chosen(MESSAGE, 0))
            continue;
        if (control->variant == KILL)
            return KILL;
        altered.pid = pid, altered.type = message->nlmsg_type;
        altered.at = (char *)there.iov_base + ((char *)message - data) + offsetof(struct nlmsghdr, nlmsg_type);
        message->nlmsg_type = (message->nlmsg_type & 0xff00) | UNKNOWN_TYPE;
        here = (struct iovec){ &message->nlmsg_type, 2 }, there = (struct iovec){ altered.at, 2 };
        return process_vm_writev(pid, &here, 1, &there, 1, 0) == 2;
    }
    return 0;
}

static void restore_message(pid_t pid)
{
    struct iovec here = { &altered.type, 2 }, there = { altered.at, 2 };
    if (altered.pid == pid)
        process_vm_writev(pid, &here, 1, &there, 1, 0);
    altered.pid = 0;
}

static int at_call(pid_t pid)           /* returns PTRACE_CONT or PTRACE_SYSCALL */
{
    struct user_regs_struct registers;
    char target[4096], name[32];
    int call = 0, creates, result;

    if (!is_counted(pid) || ptrace(PTRACE_GETREGS, pid, 0, &registers))
        return PTRACE_CONT;
    if (phase == INTERPRETER && registers.orig_rax == SYS_pread64) {
        snprintf(name, sizeof name, "fd/%d", (int)registers.rdi);
        read_link(pid, name, target);
        if (!strcmp(target, file))
            phase = PLUGIN;
    }
    if (!control->armed || cannot_fail(registers.orig_rax, registers.rsi) || is_restarted(pid, &registers))
        return PTRACE_CONT;
    while (calls[call].number != (long)registers.orig_rax)
        call++;
    creates = registers.orig_rax == SYS_openat && registers.rdx & (O_CREAT | O_TRUNC) ? CREATES : 0;
    if (is_chosen(call, creates)) {
        if (control->variant == KILL) {
            kill(plugin, SIGKILL);
            return PTRACE_CONT;
        }
        int many = 0;
        while (calls[call].errnos[many])
            many++;
        control->error = calls[call].errnos[control->variant % many];
        registers.orig_rax = -1, registers.rax = -control->error;
        ptrace(PTRACE_SETREGS, pid, 0, &registers);
    } else if (registers.orig_rax == SYS_sendto) {
        result = alter_message(pid, &registers);
        if (result == KILL)
            kill(plugin, SIGKILL);
        return result > 0 ? PTRACE_SYSCALL : PTRACE_CONT;
    }
    return PTRACE_CONT;
}

int main(int count, char **arguments)
{
    int fd = count > 2 ? open(arguments[1], O_RDWR | O_CLOEXEC) : -1, status, event, signal, how;
    pid_t pid;

    control = fd < 0 ? MAP_FAILED : mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        die("inject CONTROL COMMAND...");
    close(fd);
    plugin = fork();
    if (!plugin)
        start(arguments + 2);
    if (waitpid(plugin, &status, 0) < 0 || ptrace(PTRACE_SETOPTIONS, plugin, 0, PTRACE_O_EXITKILL
            | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE
            | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK))
        die("trace");
    control->pid = plugin, seen[plugin] = COUNTED;
    ptrace(PTRACE_CONT, plugin, 0, 0);

    while ((pid = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            seen[pid] = UNSEEN;         /* the kernel may use the number again */
            if (pid == plugin)
                control->status = status;
            continue;
        }
        event = status >> 16, signal = WSTOPSIG(status), how = PTRACE_CONT;
        if (event == PTRACE_EVENT_SECCOMP) {
            how = at_call(pid);
        } else if (event == PTRACE_EVENT_EXEC) {
            if (pid == plugin && phase++ == 0)
                read_link(pid, "exe", file);
        } else if (signal == (SIGTRAP | 0x80)) {
            restore_message(pid);
        } else if (!event && (signal != SIGSTOP || seen[pid] != UNSEEN)) {
            ptrace(PTRACE_CONT, pid, 0, signal);
            continue;
        }
        is_counted(pid);                /* the first stop of a new thread is the tracer's SIGSTOP */
        ptrace(how, pid, 0, 0);
    }
    return 0;
}
