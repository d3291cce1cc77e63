/* Make a system call without libc, on both machines. Return its result or minus an errno. A call that a signal
 * interrupts is repeated, except by system_call_once(). The includer defines EINTR. */

#if defined(__x86_64__)
static long system_call_once(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)
static long system_call_once(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#endif

static long system_call_of_5(long number, long a, long b, long c, long d, long e)
{
    long result;

    do
        result = system_call_once(number, a, b, c, d, e);
    while (result == -EINTR);
    return result;
}

static long system_call(long number, long a, long b, long c, long d)
{
    return system_call_of_5(number, a, b, c, d, 0);
}
