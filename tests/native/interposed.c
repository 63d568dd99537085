/* A program that does what the interposer stands before, and prints every result and errno: its
 * output must be the same with and without it. The first argument names what to do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void tell(const char *what, long result)
{
    int error = errno;
    printf("%s %ld %d\n", what, result, result < 0 ? error : 0);
    fflush(stdout);
    errno = 0;
}

/* Every result, and errno left alone where a call succeeds. */
static void files(void)
{
    char path[] = "interposed.XXXXXX", text[64] = {0};
    struct iovec parts[2] = {{text, 3}, {text + 3, 4}};
    int fd = mkstemp(path);
    tell("write", write(fd, "hello world", 11));
    errno = 77;
    long got = pread(fd, text, 5, 6);
    printf("errno kept %d\n", errno);
    tell("pread", got);
    puts(text);
    tell("preadv", preadv(fd, parts, 2, 0));
    tell("pwritev", pwritev(fd, parts, 2, 11));
    tell("pwrite", pwrite(fd, "xyz", 3, 0));
    tell("lseek", lseek(fd, 0, SEEK_SET));
    tell("readv", readv(fd, parts, 2));
    tell("writev", writev(fd, parts, 2));
    tell("fsync", fsync(fd));
    tell("fdatasync", fdatasync(fd));
    tell("ftruncate", ftruncate(fd, 5));
    tell("fadvise", posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    tell("close", close(fd));
    tell("close again", close(fd));
    tell("read closed", read(fd, text, 1));
    tell("pread of nothing", pread(-1, text, 1, 0));
    tell("open missing", open("/nonexistent/file", O_RDONLY));
    tell("open new without a right", open("/proc/version", O_RDWR | O_CREAT | O_EXCL, 0600));
    tell("openat missing", openat(AT_FDCWD, "nowhere", O_RDONLY));
    int copy = open("interposed.copy", O_RDWR | O_CREAT | O_TRUNC, 0640);
    int from = open(path, O_RDONLY);
    tell("copy", copy_file_range(from, NULL, copy, NULL, 3, 0));
    tell("dup2", dup2(from, copy) == copy ? 0 : -1);
    tell("read dup", read(copy, text, 2));
    unlink(path);
    unlink("interposed.copy");
}

static void sockets(void)
{
    int pair[2];
    char text[64] = {0};
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    tell("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    tell("recv nothing", recv(pair[0], text, sizeof text, 0));
    tell("send", send(pair[1], "abc", 3, 0));
    tell("recv", recv(pair[0], text, sizeof text, 0));
    tell("sendto", sendto(pair[1], "defg", 4, 0, NULL, 0));
    tell("recvfrom", recvfrom(pair[0], text, sizeof text, 0, NULL, NULL));
    tell("sendmsg", sendmsg(pair[1], &message, 0));
    tell("recvmsg", recvmsg(pair[0], &message, 0));
    close(pair[0]);
    tell("send to nobody", send(pair[1], "x", 1, MSG_NOSIGNAL));
    tell("connect", connect(pair[1], (struct sockaddr *)text, 3));
}

enum { THREADS = 8, TIMES = 3000 };

static void *reader(void *argument)
{
    char block[512];
    long sum = 0;
    int fd = open("/proc/self/exe", O_RDONLY);
    for (int i = 0; i < TIMES; i++)
        sum += pread(fd, block, sizeof block, i % 100);
    close(fd);
    *(long *)argument = sum;
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    long sums[THREADS], total = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, reader, &sums[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(all[i], NULL);
        total += sums[i];
    }
    tell("threads", total);
}

static void child_ends(const char *how, pid_t child)
{
    int status = 0;
    tell(how, waitpid(child, &status, 0) == child ? 0 : -1);
    tell("status", WEXITSTATUS(status));
}

static void processes(const char *self)
{
    char *arguments[] = {(char *)self, "files", NULL};
    pid_t child = fork();
    if (!child) {
        files();
        exit(3);
    }
    child_ends("fork", child);
    int spawned = posix_spawn(&child, self, NULL, NULL, arguments, environ);
    child_ends("spawned", child); /* told when it is over: it tells too */
    tell("posix_spawn", spawned);
    int fd = open("/dev/null", O_RDWR);
    child = vfork();
    if (!child) {
        write(fd, "x", 1);
        close(fd);
        execve(self, arguments, environ);
        _exit(4);
    }
    child_ends("vfork", child);
    tell("still open", write(fd, "x", 1));
    child = fork();
    if (!child)
        _exit(write(fd, "y", 1) == 1 ? 5 : 6);
    child_ends("fork again", child);
}

/* What daemons do: whatever is open is closed, and the numbers mean something else afterwards. */
static void daemon_like(void)
{
    int out = fcntl(1, F_DUPFD, 900);
    for (int fd = 3; fd < 1024; fd++)
        if (fd != out)
            close(fd);
    files();
    char text[8];
    int fd = open("/proc/self/exe", O_RDONLY);
    tell("first number", fd);
    tell("read", read(fd, text, sizeof text));
}

static volatile sig_atomic_t signals;
static int null_fd;

static void on_signal(int number)
{
    int before = errno;
    (void)number;
    write(null_fd, "s", 1);
    signals++;
    errno = before;
}

/* A handler that calls what we stand before, inside of calls, of malloc, and of our own recorder. */
static void handlers(void)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 200}, {0, 200}};
    long sum = 0;
    null_fd = open("/dev/null", O_WRONLY);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20000 && (i < 2000 || signals < 50); i++) {
        char *block = malloc(1000 + (size_t)i % 5000);
        int fd = open("/proc/self/exe", O_RDONLY);
        long got = pread(fd, block, 64, i % 100);
        sum |= got ^ 64;
        close(fd);
        free(block);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    tell("handlers", sum);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!strcmp(what, "files"))
        files();
    else if (!strcmp(what, "sockets"))
        sockets();
    else if (!strcmp(what, "threads"))
        threads();
    else if (!strcmp(what, "processes"))
        processes(arguments[0]);
    else if (!strcmp(what, "daemon"))
        daemon_like();
    else if (!strcmp(what, "handlers"))
        handlers();
    else
        return 2;
    return 7;
}
