/* python_core.elf: a Python for one-shot requests that starts faster than the interpreter.
 *
 * setup.py links this program from the interpreter's static library. The launcher starts it like an interpreter:
 *
 *     python_core.elf -ISB -X utf8 -c TEXT NAME FD ...
 *
 * The start of Python has two phases, see "Multi-Phase Initialization" in PEP 587 and "Python Initialization
 * Configuration" in Python's documentation. The core phase makes the built-in types and modules. The main phase
 * finds the standard library, and imports codecs and the standard streams. Most requests need nothing of the main
 * phase, so TEXT runs after the core phase. bootstrap.py calls python_core.complete(), which runs the main phase,
 * when code imports a module that neither Python's core nor the plugin file has, or uses sys.path, sys.stdin, open()
 * or the like. From then on this program is an ordinary `python -I -S`.
 *
 * Signals are as in Python: SIGPIPE is ignored, SIGINT raises KeyboardInterrupt. Only the signals of a crash have a
 * handler, for which signal.getsignal() returns None. The garbage collector is off; in an interpreter TEXT turns it
 * off.
 *
 * The first line of TEXT is "#!INTERPRETER SIZE MTIME": the interpreter whose standard library is used, the size of
 * its file in bytes, and the file's modification time in seconds. If an update has changed the file, this program
 * executes the interpreter instead: the new library may need other built-in modules, and the update may fix a
 * vulnerability that this program still has.
 *
 * fastcni's extension modules are built-in modules, and sys.leaves is their digest. If a plugin file has other
 * extension modules, as after an upgrade of fastcni without `fastcni install`, its TEXT executes the next
 * interpreter of its list. TEXT does the same if the interpreter no longer exists.
 *
 * The launcher has compared size, time and first bytes of this file with those of the installation. If damage in
 * other bytes leads to a signal, the signal's handler executes the interpreter, or prints an error document.
 */

#include <Python.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "system_call.h"

enum { TEXT = 5, FD = 7 };              /* indexes of TEXT and FD in the arguments */

extern int _PySignal_Init(int install);         /* Modules/signalmodule.c. Without it, an import of _signal crashes */

#define EACH_LEAF(DO) DO(_abandoned) DO(_ipam_bitmap) DO(_netlink) DO(_processes) DO(_rtnetlink) \
    DO(_run_token) DO(_system)
#define DECLARE(name) extern PyObject *PyInit_##name(void);
EACH_LEAF(DECLARE)

struct interpreter { char path[1024]; long long size, modified; };
static struct interpreter interpreter;

/* ---- the end of this program if it is damaged: without libc, which damaged code may have called wrongly ---- */

static char **restart;                  /* the arguments of the interpreter */
static const char *own_path;
static long plugin_file;
static char signal_stack[64 << 10];     /* the usual stack may be full */

static void print(int stream, const char *text)
{
    for (; *text; text++)
        system_call(SYS_write, stream, (long)text, 1, 0);
}

static void print_quoted(const char *text)      /* for a JSON string */
{
    char one[3] = "\\";

    for (; *text; text++) {
        one[1] = (unsigned char)*text < ' ' ? '?' : *text;
        print(1, *text == '"' || *text == '\\' ? one : one + 1);
    }
}

/* Execute the interpreter. If the request has begun, print an error document instead; if an answer was printed, print
 * nothing. Two descriptors show this: bootstrap.py sets FD_CLOEXEC on the plugin file before it reads stdin, and on
 * stdout after the answer. why: the rest of a sentence that begins with the path of this program. */
__attribute__((noreturn))
static void give_up(const char *why)
{
    print(2, own_path);
    print(2, why);
    print(2, "\n");
    if (!system_call(SYS_fcntl, plugin_file, F_GETFD, 0, 0))
        system_call(SYS_execve, (long)interpreter.path, (long)restart, (long)environ, 0);
    if (!system_call(SYS_fcntl, 1, F_GETFD, 0, 0)) {
        print(1, "{\n    \"code\": 999,\n    \"msg\": \"");
        print_quoted(own_path);
        print(1, why);
        print(1, "\",\n    \"details\": \"if it happens again, install the package fastcni again, then run "
              "`fastcni install`\"\n}");
    }
    for (;;)
        system_call(SYS_exit_group, 1, 0, 0, 0);
}

static void on_crash(int number)
{
    static char why[] = " was ended by signal 00";

    why[sizeof why - 3] = '0' + number / 10;
    why[sizeof why - 2] = '0' + number % 10;
    give_up(why);
}

static void on_exit_of_python(void)
{
    give_up(" was ended by Python");
}

/* Handle the signals of a crash, and exit(), which Python calls after fatal errors. SA_NODEFER: the interpreter must
 * not inherit a blocked signal. */
static void handle_crashes(void)
{
    static const int crashes[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
    struct sigaction action = { .sa_handler = on_crash, .sa_flags = SA_ONSTACK | SA_NODEFER };
    stack_t stack = { .ss_sp = signal_stack, .ss_size = sizeof signal_stack };
    unsigned i;

    sigaltstack(&stack, NULL);
    for (i = 0; i < sizeof crashes / sizeof *crashes; i++)
        sigaction(crashes[i], &action, NULL);
    atexit(on_exit_of_python);
}

static void check(PyStatus status)      /* if the status is a failure, print it and end */
{
    if (PyStatus_Exception(status)) {
        fprintf(stderr, "%s: %s\n", own_path, status.err_msg ? status.err_msg : "the start of Python ended");
        give_up(" cannot start Python");
    }
}


/* ---- the start of Python ---- */

/* Python's _Py_Deepfreeze_Init() interns the names in the code of the twenty frozen modules, which writes to most
 * pages of that code. Python calls this function at the beginning of the core phase, which needs only one of these
 * modules. Names that are not interned are compared by their text, so the other modules can wait for the main phase;
 * but not in Python 3.12, where a frozen name and an equal name that was interned earlier would stay different
 * objects. So the linker puts the function below in its place, see --wrap in ld(1). Returns -1 with an exception
 * set, or 0. */
extern int __real__Py_Deepfreeze_Init(void);

enum { INTERN_LATER = PY_VERSION_HEX < 0x030c0000 };

int __wrap__Py_Deepfreeze_Init(void)
{
    PyGC_Disable();                     /* otherwise the core phase collects garbage three times, and finds none */
    return INTERN_LATER ? 0 : __real__Py_Deepfreeze_Init();
}

static PyObject *complete(PyObject *self, PyObject *unused)
{
    PyStatus status;

    (void)self, (void)unused;
    if (INTERN_LATER && __real__Py_Deepfreeze_Init() < 0)
        return NULL;
    status = _Py_InitializeMain();
    if (PyStatus_Exception(status))
        return PyErr_Format(PyExc_ImportError, "Python's standard library cannot be used: %s",
                            status.err_msg ? status.err_msg : "the start of Python ended");
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    { "complete", complete, METH_NOARGS, "Run the main phase of Python's start. Raises ImportError." }, { 0 } };
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "python_core", 0, -1, functions };

static PyObject *make_module(void)
{
    return PyModule_Create(&module);
}

#define ENTRY(name) { "fastcni." #name, PyInit_##name },
static struct _inittab built_in[] = { EACH_LEAF(ENTRY) { "python_core", make_module }, { 0 } };

static int set_list(const char *name, int count, char **texts)  /* set a list of sys; return 0 on success */
{
    PyObject *list = PyList_New(0), *item;
    int failed = !list;

    for (; count && !failed; count--, texts++) {
        item = PyUnicode_DecodeFSDefault(*texts);
        failed = !item || PyList_Append(list, item);
        Py_XDECREF(item);
    }
    failed = failed || PySys_SetObject(name, list);
    Py_XDECREF(list);
    return failed;
}

static int set_leaves(const char *text)
{
    PyObject *digest = PyUnicode_FromString(text);
    int failed = !digest || PySys_SetObject("leaves", digest);

    Py_XDECREF(digest);
    return failed;
}

/* Provide an arena of 1 MiB, in which Python allocates memory; a request uses most of two arenas. MAP_POPULATE takes
 * less time than a page fault for each page. */
static void *provide(void *unused, size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    (void)unused;
    return memory == MAP_FAILED ? NULL : memory;
}

static void release(void *unused, void *memory, size_t size)
{
    (void)unused;
    munmap(memory, size);
}

static void start(int count, char **arguments)
{
    PyObjectArenaAllocator arenas = { 0, provide, release };
    PyPreConfig before;
    PyConfig config;

    PyObject_SetArenaAllocator(&arenas);
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));
    PyConfig_InitIsolatedConfig(&config);
    config._init_main = 0;
    config.site_import = config.write_bytecode = config.parse_argv = 0;
    config.install_signal_handlers = 1;
    check(PyConfig_SetBytesString(&config, &config.program_name, interpreter.path));
    check(PyConfig_SetBytesString(&config, &config.executable, interpreter.path));
    check(PyConfig_SetBytesString(&config, &config.base_executable, interpreter.path));
    check(PyConfig_SetBytesArgv(&config, count, arguments));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

static int read_line(const char *text, struct interpreter *to)          /* read the first line of TEXT; 0: error */
{
    const char *end = strchr(text, '\n'), *at = end;
    int spaces = 0;

    if (strncmp(text, "#!", 2) || !end)
        return 0;
    while (spaces < 2 && --at > text + 2)       /* from the end, because a path may have spaces */
        spaces += *at == ' ';
    if (spaces < 2 || at - text - 2 >= (long)sizeof to->path)
        return 0;
    memcpy(to->path, text + 2, at - text - 2);
    to->path[at - text - 2] = 0;
    return sscanf(at, "%lld %lld", &to->size, &to->modified) == 2;
}

static int is_unchanged(const struct interpreter *it)
{
    struct stat now;

    return !stat(it->path, &now) && now.st_size == it->size && now.st_mtime == it->modified;
}

int main(int count, char **arguments)
{
    const char *leaves = LEAVES;
    char *text;
    int failed;

    if (count == 2 && !strcmp(arguments[1], "--version"))       /* sys.version, for interpreters.py */
        return puts(Py_GetVersion()) < 0;
    own_path = arguments[0];
    text = count > TEXT ? arguments[TEXT] : "";
    if (!read_line(text, &interpreter)) {
        fprintf(stderr, "%s: plugin files of fastcni start this program\n", *arguments);
        return 2;
    }
    if (!is_unchanged(&interpreter)) {
        arguments[0] = interpreter.path;
        execv(interpreter.path, arguments);
        leaves = "";                    /* the interpreter no longer exists; no plugin file has this digest */
    }
    if (!(restart = malloc((count + 1) * sizeof *restart)))
        return 1;
    memcpy(restart, arguments, (count + 1) * sizeof *restart);
    restart[0] = interpreter.path;
    plugin_file = count > FD ? atoi(arguments[FD]) : -1;
    handle_crashes();
    if (PyImport_ExtendInittab(built_in) < 0)
        give_up(" has no memory");
    arguments[TEXT] = "-c";             /* sys.argv[0] of `python -c` */
    start(count - TEXT, arguments + TEXT);
    failed = set_leaves(leaves) || set_list("argv", count - TEXT, arguments + TEXT);
    arguments[TEXT] = text;             /* refuse.py executes the next interpreter with the same arguments */
    if (failed || set_list("orig_argv", count, arguments) || _PySignal_Init(1) < 0)
        PyErr_Print();
    else if (!PyRun_SimpleString(text))         /* bootstrap.main() ends the process; Python has printed an exception */
        _exit(1);
    give_up(" has not run the request");
}
