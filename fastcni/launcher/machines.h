/* The code for each of the two machines: the program's first instructions, a system call, the system calls' numbers. */

/* Behind the small variables, so that these share one page: each page that is written costs a page fault. */
#define BUFFER __attribute__((section(".bss.buffers")))

enum { EINTR = 4 };                     /* SIGSTOP and SIGCONT interrupt some calls even without handlers, signal(7) */

#include "system_call.h"

#if defined(__x86_64__)
enum { SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_lseek = 8, SYS_rt_sigaction = 13, SYS_ioctl = 16,
       SYS_pread64 = 17, SYS_socket = 41, SYS_connect = 42, SYS_sendmsg = 46, SYS_recvmsg = 47, SYS_shutdown = 48,
       SYS_setsockopt = 54, SYS_execve = 59, SYS_exit_group = 231, SYS_openat = 257, SYS_ppoll = 271, SYS_dup3 = 292,
       SYS_memfd_create = 319 };
enum { SYS_wait4 = 61, SYS_faccessat = 269, SYS_prlimit64 = 302 };
enum { SYS_pwrite64 = 18, SYS_clone = 56, SYS_flock = 73, SYS_ftruncate = 77, SYS_geteuid = 107, SYS_setsid = 112,
       SYS_clock_gettime = 228, SYS_mkdirat = 258, SYS_readlinkat = 267, SYS_close_range = 436 };    /* autostart.h */
enum { SYS_fstat = 5 };                 /* one_shot_count.h */
struct status { unsigned long device, inode, links; unsigned mode, user, group, unused; unsigned long special, size;
                long unused_too[4]; struct { long s, ns; } modified;
                long rest[5]; };        /* struct stat, 144 bytes */
_Static_assert(sizeof(struct status) == 144, "the kernel writes 144 bytes");

__asm__(".globl _start\n_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call begin\n");

#elif defined(__aarch64__)
enum { SYS_dup3 = 24, SYS_ioctl = 29, SYS_openat = 56, SYS_close = 57, SYS_lseek = 62, SYS_read = 63, SYS_write = 64,
       SYS_pread64 = 67, SYS_ppoll = 73, SYS_exit_group = 94, SYS_rt_sigaction = 134, SYS_socket = 198,
       SYS_connect = 203, SYS_setsockopt = 208, SYS_shutdown = 210, SYS_sendmsg = 211, SYS_recvmsg = 212, SYS_execve = 221,
       SYS_memfd_create = 279 };
enum { SYS_faccessat = 48, SYS_wait4 = 260, SYS_prlimit64 = 261 };
enum { SYS_flock = 32, SYS_mkdirat = 34, SYS_ftruncate = 46, SYS_pwrite64 = 68, SYS_readlinkat = 78,
       SYS_clock_gettime = 113, SYS_setsid = 157, SYS_geteuid = 175, SYS_clone = 220, SYS_close_range = 436 };
enum { SYS_fstat = 80 };
struct status { unsigned long device, inode; unsigned mode, links, user, group; unsigned long special, unused, size;
                long unused_too[4]; struct { long s, ns; } modified; long rest[3]; };
_Static_assert(sizeof(struct status) == 128, "the kernel writes 128 bytes");

__asm__(".globl _start\n_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl begin\n");

#else
#error "the launcher supports x86_64 and aarch64; another machine needs a _start, a system_call and its numbers"

#endif
