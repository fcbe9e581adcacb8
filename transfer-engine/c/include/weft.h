/* SPDX-License-Identifier: Apache-2.0
 *
 * Made from transfer-engine/c/src by `cargo run -p xtask -- generate`: change it there.
 *
 * The TransferEngine of Weft: memory moves between processes. docs/c.md is the guide.
 *
 * Rules of all calls:
 * - A call that can fail returns a weft_status. After a failure weft_last_error() says which argument is wrong and what
 *   to do; nothing was begun, and no result was written.
 * - A structure whose bytes are all 0 has the defaults. NULL for a config or for options means the same.
 * - Handles may be used by several threads at once. A handle is freed once, when no call uses it; NULL may be freed.
 * - Strings are UTF-8 and end with 0. A string that a call returns belongs to the handle, and lives as long.
 * - Callbacks run on a thread of the engine, one after the other. They must be short, and must not throw exceptions.
 * - Times are in microseconds.
 */


#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Peers may do nothing: the memory is the source of writes here.
#define WEFT_ACCESS_NONE 0

// Peers may write to it. It is also needed where this end reads to.
#define WEFT_ACCESS_WRITE 1

// Peers may read it.
#define WEFT_ACCESS_READ 2

// Peers may change words of it.
#define WEFT_ACCESS_ATOMIC 4

// All of it.
#define WEFT_ACCESS_ALL 7

// Time without end, for calls that wait.
#define WEFT_NO_TIMEOUT UINT64_MAX

// What a call answers: 0, or less than 0 when it failed.
typedef enum {
    // It succeeded.
    WEFT_OK = 0,
    // An argument or a setting cannot be used.
    WEFT_INVALID = -1,
    // Bytes do not lie in their region.
    WEFT_OUT_OF_BOUNDS = -2,
    // The memory is not registered with this engine, or no longer.
    WEFT_NOT_REGISTERED = -3,
    // The region is registered for other uses.
    WEFT_ACCESS_DENIED = -4,
    // The operating system refused a call.
    WEFT_SYSTEM = -5,
    // A NIC did not start.
    WEFT_NIC = -6,
    // The process was forked after the engine was started.
    WEFT_FORKED = -7,
    // The time to wait is over.
    WEFT_TIMED_OUT = -8,
    // A bug of the library.
    WEFT_INTERNAL = -9,
    // The engine is closed, or is being closed.
    WEFT_CLOSED = -10,
} weft_status;

// How an operation ended.
typedef enum {
    // The bytes of a write or a send are at the other end, or those of a read here; a count is reached; a peer is
    // connected.
    WEFT_DONE = 1,
    // It was stopped, and no byte of it lands any more: the memory at both ends may be reused. Some bytes may have landed
    // before.
    WEFT_REUSABLE = 2,
    // It was stopped, and the peer has not confirmed that: bytes may still land.
    WEFT_UNCONFIRMED = 3,
    // It failed. Bytes may still land, unless the stage is WEFT_STAGE_CONNECT or WEFT_STAGE_POST.
    WEFT_FAILED = 4,
} weft_outcome_code;

// How far an operation was that is not done.
typedef enum {
    // It is done.
    WEFT_STAGE_DONE = 0,
    // Connecting to the peer. No byte has left.
    WEFT_STAGE_CONNECT = 1,
    // Posting a work request. No byte has left.
    WEFT_STAGE_POST = 2,
    // Moving bytes.
    WEFT_STAGE_TRANSFER = 3,
    // Waiting for a count of immediates.
    WEFT_STAGE_COUNT = 4,
} weft_stage;

// The address of a peer.
typedef struct weft_address weft_address;

// The name of a peer's memory.
typedef struct weft_descriptor weft_descriptor;

// A running engine.
typedef struct weft_engine weft_engine;

// The counter of an immediate.
typedef struct weft_imm_counter weft_imm_counter;

// Registered memory.
typedef struct weft_mr weft_mr;

// An operation that was submitted.
typedef struct weft_operation weft_operation;

// Peers for weft_submit_barrier().
typedef struct weft_peer_group weft_peer_group;

// A word of 64 bits that is watched.
typedef struct weft_watcher weft_watcher;

// The settings of an engine. 0 stands for the default of each.
typedef struct {
    // The addresses of `nic_count` NICs, at most 16, such as "192.0.2.1", all IPv4 or all IPv6. Every operation is spread over
    // all of them, and over those of the peer.
    const char *const *nics;
    // 0: one NIC, 127.0.0.1.
    size_t nic_count;
    // UDP ports, at least as many for each worker as there are NICs, which share them; both ends must agree. 0: 16.
    uint16_t port_count;
    // The engine looks for free ports from here on. 0, with `last_port`: 20000.
    uint16_t first_port;
    // The engine looks for free ports to here. 0, with `first_port`: 32767.
    uint16_t last_port;
    // Worker threads, a divisor of `port_count`; both ends must agree. 0: 1.
    uint16_t workers;
    // Bytes of the largest IP packet; both ends must agree. 0: 1500.
    uint16_t mtu;
    // Whether data is encrypted; both ends must agree. Set-up always is.
    bool encrypt;
    // A connection with bytes under way that receives nothing for this time fails. 0: 10 s.
    uint64_t stall_timeout_us;
    // How long connecting to a peer may take. 0: 5 s.
    uint64_t connect_timeout_us;
    // How long a stopped operation waits for the peer to confirm the stop. 0: 1 s.
    uint64_t cancel_timeout_us;
    // How often the words of watchers are read. 0: 50 us.
    uint64_t watch_interval_us;
    // The link to peers: "udp", "tcp" or "shm", or "auto": shared memory in a node, else the faster of the two others, which
    // is measured when engines connect; "network" is the same without shared memory. "xdp" is UDP past the kernel's stack, for
    // root, one NIC and one worker; "auto" never takes it. NULL: "auto".
    const char *link;
    // No thread of the engine moves bytes: the program does, by weft_poll. Then `workers` is 1.
    bool program_polls;
    // The CPUs of the worker threads, `cpu_count` of them, one after the other. NULL: the system chooses.
    const uint16_t *cpus;
    // 0: the system chooses.
    size_t cpu_count;
} weft_config;

// The paths between a NIC of an engine and one of its peers.
typedef struct {
    // The address of the engine's NIC.
    char here[46];
    // That of the peer's.
    char there[46];
    // How many paths there are.
    uint64_t paths;
    // Those that carry data: 0 where the two do not reach each other.
    uint64_t live_paths;
    // Chunks sent, resends included.
    uint64_t sent_chunks;
    // Those of them that were declared lost.
    uint64_t lost_chunks;
} weft_nic_pair;

// What an engine has: a program that leaks sees it here.
typedef struct {
    // Peers that this engine has connected to, or is connecting to.
    uint64_t peers;
    // Connections of the NICs.
    uint64_t connections;
    // Operations that have not ended.
    uint64_t operations;
    // Counters of immediates.
    uint64_t counters;
    // Registered regions.
    uint64_t regions;
} weft_counts;

// The end of an operation. The strings are good until the operation is freed, or until the callback returns.
typedef struct {
    // How it ended.
    weft_outcome_code code;
    // How far it was.
    weft_stage stage;
    // The name of the peer, as weft_address_name() gives it; NULL when it is done, and for a count.
    const char *peer;
    // The two ends of the connection; NULL when it is done, and before there is one.
    const char *path;
    // A stable name of what ended it, such as "DeadlinePassed", "Cancelled" or "Unreachable"; "Done" when it is done.
    const char *reason;
    // All of this in one line, with a remedy.
    const char *text;
} weft_outcome;

// A write of contiguous bytes.
typedef struct {
    // The memory to write from. Do not change the bytes before the operation has ended.
    const weft_mr *source;
    // Where in it the bytes begin.
    uint64_t source_offset;
    // The memory to write to; it needs WEFT_ACCESS_WRITE.
    const weft_descriptor *destination;
    // Where in it the bytes go.
    uint64_t destination_offset;
    // How many bytes, at least 1.
    uint64_t bytes;
    // Counts once at the peer when all bytes are there, if `has_immediate`.
    uint32_t immediate;
    // Whether the write has an immediate.
    bool has_immediate;
} weft_single_write;

// Gets the end of an operation. It may submit operations, and must not wait for one.
typedef void (*weft_completion_handler)(void *user_data, const weft_outcome *outcome);

// How long an operation may take, and who learns of its end.
typedef struct {
    // From the call on. When it passes, the operation is stopped as by weft_operation_cancel(). 0: 30 s.
    uint64_t deadline_us;
    // Called once, if the call that submits the operation succeeds. It may be called before that call returns.
    weft_completion_handler handler;
    // Passed on to `handler`.
    void *user_data;
    // Set to a weft_outcome_code at the end, with release ordering; set it to 0 before, and read it with acquire ordering
    // (`__atomic_load_n(flag, __ATOMIC_ACQUIRE)`). It must stay until the end. It cannot be combined with `handler`.
    uint64_t *flag;
} weft_options;

// Pages of a region: page `indices[i]` begins at `offset + indices[i] * stride` bytes.
typedef struct {
    // Which pages: `page_count` numbers.
    const uint32_t *indices;
    // Bytes from the beginning of a page to that of the next.
    uint64_t stride;
    // Where page 0 begins.
    uint64_t offset;
} weft_pages;

// A write of pages, the i-th of the source to the i-th of the destination.
typedef struct {
    // The memory to write from. Do not change the bytes before the operation has ended.
    const weft_mr *source;
    // The pages to write from.
    weft_pages source_pages;
    // The memory to write to; it needs WEFT_ACCESS_WRITE.
    const weft_descriptor *destination;
    // The pages to write to. Where they overlap, any of them may be seen.
    weft_pages destination_pages;
    // How many pages, at least 1.
    size_t page_count;
    // Bytes of each page, at least 1.
    uint32_t page_bytes;
    // Counts once at the peer when all pages are there, if `has_immediate`.
    uint32_t immediate;
    // Whether the write has an immediate.
    bool has_immediate;
} weft_paged_writes;

// A read of contiguous bytes.
typedef struct {
    // The memory to read from; it needs WEFT_ACCESS_READ.
    const weft_descriptor *source;
    // Where in it the bytes begin.
    uint64_t source_offset;
    // The memory to read to; it needs WEFT_ACCESS_WRITE.
    const weft_mr *destination;
    // Where in it the bytes go.
    uint64_t destination_offset;
    // How many bytes, at least 1.
    uint64_t bytes;
} weft_single_read;

// A message to send.
typedef struct {
    // Who gets it.
    const weft_address *peer;
    // `bytes` bytes. The call copies them: they may be changed when it returns.
    const void *message;
    // How many; 0 is a message too.
    uint64_t bytes;
    // Comes with the message and is not counted, if `has_immediate`.
    uint32_t immediate;
    // Whether the message has an immediate.
    bool has_immediate;
} weft_send;

// Gets the bytes of a message, which are good until it returns, and its immediate or NULL.
typedef void (*weft_message_handler)(void *user_data,
                                     const void *message,
                                     uint64_t bytes,
                                     const uint32_t *immediate);

// Gets the old and the new value of a word.
typedef void (*weft_watch_handler)(void *user_data, uint64_t old_value, uint64_t new_value);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says why the last call of this thread that failed has failed: one line that names the argument and the remedy. It is
// empty before the first failure. The string is good until the next failure on this thread.
const char *weft_last_error(void);

// The name of a status, such as "WEFT_OUT_OF_BOUNDS". `status` is a weft_status.
const char *weft_status_name(int32_t status);

// Starts an engine on free ports of its NICs. It needs no agent, no root and no file. `config` may be NULL.
weft_status weft_engine_start(const weft_config *config, weft_engine **engine);

// Ends the engine: operations under way fail, peers notice at once, and callbacks that submit are refused with WEFT_CLOSED.
// Callbacks may use the engine until it returns. When it returns, no callback of the engine runs
// or will run, and every operation has ended. Other handles stay good, and are freed before or after. A callback must not
// call this. In a forked process it does nothing.
weft_status weft_engine_close(weft_engine *engine);

// How peers reach this engine, as a string. **A secret**: who has it may connect, and nobody else. NULL if `engine` is.
const char *weft_main_address(const weft_engine *engine);

// Ends what this engine has under way with a peer, and its connections to it. The next operation connects again.
weft_status weft_remove_peer(const weft_engine *engine,
                             const weft_address *peer);

// Moves what there is to move and ends what has ended, for an engine with `program_polls`. It returns at once;
// weft_operation_wait() does the same until the operation has ended. `busy`, which may be NULL, tells whether there was anything to do.
weft_status weft_poll(const weft_engine *engine,
                      bool *busy);

// Writes the link to a peer into `text`, and why it is that one, such as "tcp: measured: udp 4.10 GB/s, tcp 5.20 GB/s". What
// is longer than `bytes`, which counts the 0 at the end, is cut. The text is empty while this engine is not connected to the
// peer.
weft_status weft_peer_link(const weft_engine *engine,
                           const weft_address *peer,
                           char *text,
                           size_t bytes);

// Tells of the `index`-th pair of NICs of the engine and of peers that are connected over udp or tcp. WEFT_OUT_OF_BOUNDS: there are
// no more.
weft_status weft_engine_nic_pair(const weft_engine *engine,
                                 size_t index,
                                 weft_nic_pair *pair);

// Tells what the engine has.
weft_status weft_engine_counts(const weft_engine *engine, weft_counts *counts);

// Parses what weft_main_address() gave at the peer.
weft_status weft_address_parse(const char *text, weft_address **address);

// What outcomes and logs call the peer. No secret. NULL if `address` is.
const char *weft_address_name(const weft_address *address);

// Frees an address. Operations that use it go on.
void weft_address_free(weft_address *address);

// Parses what weft_mr_descriptor() gave at the peer. Parse a descriptor once, and use it for many operations.
weft_status weft_descriptor_parse(const char *text, weft_descriptor **descriptor);

// Bytes of the region. 0 if `descriptor` is NULL.
uint64_t weft_descriptor_bytes(const weft_descriptor *descriptor);

// The engine that has the memory.
weft_status weft_descriptor_address(const weft_descriptor *descriptor, weft_address **address);

// Frees a descriptor. Operations that use it go on.
void weft_descriptor_free(weft_descriptor *descriptor);

// Registers `bytes` bytes of memory of the program, at least 1. Nothing is copied or pinned. Peers that have the descriptor
// may use the memory as `access` says, a sum of WEFT_ACCESS_ values. Without WEFT_ACCESS_WRITE and WEFT_ACCESS_ATOMIC
// it is never written to.
//
// **The memory must stay until weft_dereg_mr() has returned WEFT_OK**, also when the engine is closed before.
weft_status weft_reg_mr(const weft_engine *engine,
                        void *memory,
                        uint64_t bytes,
                        uint32_t access,
                        weft_mr **mr);

// Registers memory of an NVIDIA GPU: `bytes` bytes from `address` on, all in one allocation, as cuMemAlloc() and cudaMalloc()
// make it. `gpu` is the driver's number of the GPU, 0 for the first. The driver, libcuda.so.1, is loaded by the first call.
// Bytes go through host memory. The copies wait for no stream of the program: synchronise the one that computes a source before
// the write is submitted.
//
// **The memory must stay until weft_dereg_mr() has returned WEFT_OK**, also when the engine is closed before.
weft_status weft_reg_cuda_mr(const weft_engine *engine,
                             uint32_t gpu,
                             uint64_t address,
                             uint64_t bytes,
                             uint32_t access,
                             weft_mr **mr);

// Allocates `bytes` bytes, at least 1, all 0, and registers them for all access. weft_mr_address() says where they lie. The
// memory is a memfd, which other processes can map; weft_dereg_mr() frees it.
weft_status weft_alloc(const weft_engine *engine,
                       uint64_t bytes,
                       weft_mr **mr);

// Where the memory lies. NULL if `mr` is, or for memory of a GPU.
void *weft_mr_address(const weft_mr *mr);

// Bytes of the memory. 0 if `mr` is NULL.
uint64_t weft_mr_bytes(const weft_mr *mr);

// The name of the memory for peers, a string to send to them. **A secret**, as the engine's address. NULL if `mr` is.
const char *weft_mr_descriptor(const weft_mr *mr);

// Closes the memory to peers and to later operations, then waits until nothing of the engine refers to it, and frees
// `mr`. After WEFT_OK the program may free or reuse the memory; that of weft_alloc() is gone. No other call may use `mr`
// meanwhile.
//
// After WEFT_TIMED_OUT operations under way still refer to the memory: no byte of a peer lands any more, but `mr` is still
// there, and the memory must stay. Call again; or cancel the operations, remove the peer or close the engine, and call
// again. `timeout_us` may be 0, or WEFT_NO_TIMEOUT; it must be 0 for an engine with `program_polls`, where nothing ends before
// weft_poll(). A callback may call this with 0 only.
weft_status weft_dereg_mr(weft_mr *mr,
                          uint64_t timeout_us);

// Waits until the operation has ended, and writes how to `outcome`, which may be NULL. WEFT_TIMED_OUT when it has not
// ended in this time: `timeout_us` may be 0, to look only, or WEFT_NO_TIMEOUT, for it ends by its deadline and the cancel
// timeout. A callback may call this with 0 only.
weft_status weft_operation_wait(const weft_operation *operation,
                                uint64_t timeout_us,
                                weft_outcome *outcome);

// Stops the operation. It then ends within the cancel timeout: as WEFT_REUSABLE when no byte of it lands any more, as
// WEFT_UNCONFIRMED when the peer does not confirm that in time, or as it would have ended anyway. A send that is under way
// cannot be stopped: it ends as WEFT_DONE or WEFT_UNCONFIRMED.
weft_status weft_operation_cancel(const weft_operation *operation);

// Frees the handle. The operation goes on.
void weft_operation_free(weft_operation *operation);

// Writes bytes. `options` and `operation` may be NULL.
weft_status weft_submit_single_write(const weft_engine *engine,
                                     const weft_single_write *write,
                                     const weft_options *options,
                                     weft_operation **operation);

// Writes to many peers: `count` writes, at least 1, which are one operation. `options` and
// `operation` may be NULL.
weft_status weft_submit_scatter(const weft_engine *engine,
                                const weft_single_write *writes,
                                size_t count,
                                const weft_options *options,
                                weft_operation **operation);

// Writes pages of one size. `options` and `operation` may be NULL.
weft_status weft_submit_paged_writes(const weft_engine *engine,
                                     const weft_paged_writes *write,
                                     const weft_options *options,
                                     weft_operation **operation);

// Reads bytes. `options` and `operation` may be NULL.
weft_status weft_submit_read(const weft_engine *engine,
                             const weft_single_read *read,
                             const weft_options *options,
                             weft_operation **operation);

// Connects to a peer. Other operations do that when they need it. `options` and `operation` may be NULL.
weft_status weft_connect(const weft_engine *engine,
                         const weft_address *peer,
                         const weft_options *options,
                         weft_operation **operation);

// Sends a message to the receives of a peer. Messages from one engine to one peer arrive in order. A message that finds no
// receive waits, and later ones wait behind it. A message that is longer than the receives ends the connections with the
// peer. `options` and `operation` may be NULL.
weft_status weft_submit_send(const weft_engine *engine,
                             const weft_send *send,
                             const weft_options *options,
                             weft_operation **operation);

// Posts `count` buffers of `bytes` bytes that the messages of all peers share, once for an engine. Each message goes to
// `handler`, one after the other, until the engine is closed. A slow handler slows the senders.
weft_status weft_submit_recvs(const weft_engine *engine,
                              uint64_t bytes,
                              uint64_t count,
                              weft_message_handler handler,
                              void *user_data);

// Makes a group of `count` peers, at least 1, and begins to connect to them. The addresses may be freed when it returns.
weft_status weft_add_peer_group(const weft_engine *engine,
                                const weft_address *const *peers,
                                size_t count,
                                weft_peer_group **group);

// Has `immediate` count once at each peer of a group. With weft_expect_imm_count() at each peer it is a barrier. `options`
// and `operation` may be NULL.
weft_status weft_submit_barrier(const weft_engine *engine,
                                const weft_peer_group *group,
                                uint32_t immediate,
                                const weft_options *options,
                                weft_operation **operation);

// Frees a group. Operations on it go on, and its peers stay connected.
void weft_peer_group_free(weft_peer_group *group);

// Ends when the count of an immediate is `count` or more: so many messages with it have arrived, and their bytes are there.
// The count begins at 0 and grows until weft_free_imm(). The order of the messages does not matter. `options` and
// `operation` may be NULL.
weft_status weft_expect_imm_count(const weft_engine *engine,
                                  uint32_t immediate,
                                  uint64_t count,
                                  const weft_options *options,
                                  weft_operation **operation);

// Ends the counter of an immediate and writes its count to `count`, which may be NULL: the next message with this immediate
// is the first one. An operation that expects a higher count then ends by its deadline.
weft_status weft_free_imm(const weft_engine *engine,
                          uint32_t immediate,
                          uint64_t *count);

// The counter of an immediate, for a program that polls it. weft_free_imm() ends it: then take a new one.
weft_status weft_imm_counter_open(const weft_engine *engine, uint32_t immediate, weft_imm_counter **counter);

// The count: messages with the immediate whose bytes are there. It takes no lock. 0 if `counter` is NULL.
uint64_t weft_imm_counter_count(const weft_imm_counter *counter);

// Frees the handle. The engine goes on counting.
void weft_imm_counter_free(weft_imm_counter *counter);

// Makes a word of 64 bits, 0 at first, which this or another process or a device increments. `handler` gets its old and new
// value soon after; several changes may come as one.
weft_status weft_alloc_watcher(const weft_engine *engine,
                               weft_watch_handler handler,
                               void *user_data,
                               weft_watcher **watcher);

// Adds to the word, also in a forked process. The handler sees what was written before.
weft_status weft_watcher_add(const weft_watcher *watcher, uint64_t value);

// The word. 0 if `watcher` is NULL.
uint64_t weft_watcher_load(const weft_watcher *watcher);

// A memfd whose first 8 bytes are the word, for a process or a device that increments it. It belongs to the watcher. -1 if
// `watcher` is NULL.
int weft_watcher_fd(const weft_watcher *watcher);

// Ends the watch. When it returns, the handler does not run, and is not called again; the handler itself may call this.
void weft_watcher_free(weft_watcher *watcher);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEFT_H */
