/* Make a system call without libc, on both machines. Return its result or minus an errno. The includer defines
 * EINTR. */

#if defined(__x86_64__)
static long system_call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    do
        __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                         : "rcx", "r11", "memory");
    while (result == -EINTR);
    return result;
}

#elif defined(__aarch64__)
static long system_call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0");
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    do {
        x0 = a;
        __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    } while (x0 == -EINTR);
    return x0;
}
#endif
