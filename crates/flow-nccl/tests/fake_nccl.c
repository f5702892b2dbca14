/* A library with NCCL's names and none of its work: what it was asked is counted, and it fails where the test says so. */
#include <string.h>

typedef int result;
typedef struct { char bytes[128]; } unique_id;

static int calls[8], polls, code_of_send;
enum { INIT, ABORT, SEND, RECEIVE, GROUP_START, GROUP_END, ALL_REDUCE };

int fake_calls(int of) { return calls[of]; }
void fake_send_fails(int code) { code_of_send = code; }

result ncclGetVersion(int *version) { *version = 22809; return 0; }
result ncclGetUniqueId(unique_id *id) { memset(id->bytes, 7, 128); return 0; }
result ncclCommInitRankConfig(void **comm, int ranks, unique_id id, int rank, void *config) {
    calls[INIT]++;
    polls = 0;
    if (id.bytes[127] != 7 || rank >= ranks || *(size_t *)config < 32) return 4;
    *comm = &calls;
    return 7;
}
result ncclCommAbort(void *comm) { calls[ABORT]++; return 0; }
/* In progress twice, then done. */
result ncclCommGetAsyncError(void *comm, int *state) { *state = ++polls > 2 ? 0 : 7; return 0; }
/* Bytes are type 1. */
result ncclSend(const void *from, size_t count, int type, int rank, void *comm, void *stream) {
    calls[SEND]++;
    return type == 1 ? code_of_send : 4;
}
result ncclRecv(void *to, size_t count, int type, int rank, void *comm, void *stream) {
    calls[RECEIVE]++;
    return type == 1 ? 0 : 4;
}
/* f32 is type 7, and a sum operation 0. */
result ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
    calls[ALL_REDUCE]++;
    return type == 7 && operation == 0 ? 0 : 4;
}
result ncclGroupStart(void) { calls[GROUP_START]++; return 0; }
result ncclGroupEnd(void) { calls[GROUP_END]++; return 0; }
const char *ncclGetErrorString(result code) { return code == 2 ? "unhandled system error" : "another error"; }
const char *ncclGetLastError(void *comm) { return "Error while creating shared memory segment\n"; }
