/* Aquifer for C, and for languages that bind to C. This header is complete documentation: nothing
 * else has to be read. Link with -laquifer (pkg-config aquifer).
 *
 * Aquifer keeps the KV cache of inference engines in host memory and on drives, and lends it back
 * in place. A model's KV is cut into blocks of a fixed number of tokens. A block's key is a hash of
 * everything before its end, so a prompt is a chain of keys:
 *
 *     once      aquifer_connect -> aquifer_register_layout
 *     a prompt  aquifer_derive_root, aquifer_derive_chain
 *     recall    aquifer_match -> aquifer_fetch -> (copy, or use in place) -> aquifer_release
 *     store     aquifer_reserve -> (write KV into the slots) -> aquifer_commit
 *
 * An engine that keeps its KV in tensors describes them once (aquifer_map_tensors) and then recalls
 * with aquifer_load and stores with aquifer_store, which do the second and third line in one call.
 *
 * The cache may always answer "not there": then compute. It never answers with wrong bytes, and
 * never later than the deadline that a request carries. examples/engine.c is a whole program.
 *
 * Calls. A call that can fail returns an aquifer_code: AQUIFER_OK is 0, and aquifer_error() is the
 * text of the last failure on this thread. A null or senseless argument is AQUIFER_INVALID, never a
 * crash. No argument of a call has to outlive the call.
 *
 * Requests. A call that takes an aquifer_request returns at once: AQUIFER_OK means that it has
 * begun. The request changes only in aquifer_poll() and aquifer_wait(); no other thread ever
 * touches it. When it is done, aquifer_request_status() is the outcome of the whole request, and
 * the functions of the section "Answers" give the rest. Blocks of one request are answered in the
 * order given, so the first can be copied while the last are still being read.
 * aquifer_request_completed() says how many are answered. A request that is done can be used again,
 * for any call; that saves memory.
 *
 * Threads. A cache, with the requests begun on it, is used by one thread at a time; aquifer_join()
 * makes another one for another thread. All other functions may be called from any thread. After a
 * fork() the child must not use anything that its parent made.
 *
 * Versions. A struct that begins with `size` may grow: set it to the size of the struct as it was
 * compiled, and set all unused fields to 0. Structs without `size`, which are those in arrays,
 * never change. Fields named `reserved` are 0. A number that has a default takes it when it is 0.
 * Texts are UTF-8 and end with a 0; a null one is empty.
 */
/* NOLINTBEGIN: this is C. */
#ifndef AQUIFER_AQUIFER_H
#define AQUIFER_AQUIFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Codes and other numbers ---- */

/* A code exists where a caller would do something different. */
typedef int32_t aquifer_code;
enum {
  AQUIFER_OK = 0,
  AQUIFER_NOT_FOUND = 1,   /* A miss: compute it. */
  AQUIFER_BUSY = 2,        /* Too many requests are under way. Poll, then come back. */
  AQUIFER_NO_SPACE = 3,    /* Memory, a disk or a table is full. */
  AQUIFER_UNAVAILABLE = 4, /* The node or a drive is gone. The cache goes on without it. */
  AQUIFER_CORRUPT = 5,     /* The block was damaged, and has been dropped. A miss. */
  AQUIFER_LATE = 6,        /* Not by the deadline, or cancelled. */
  AQUIFER_INVALID = 7      /* The call was wrong. Fix the caller. */
};

/* Where a block is, from near to far. */
enum { AQUIFER_DRAM = 0, AQUIFER_NVME = 1, AQUIFER_PEER = 2, AQUIFER_DURABLE = 3 };

/* The type of an element. */
enum {
  AQUIFER_FLOAT32 = 1,
  AQUIFER_FLOAT16 = 2,
  AQUIFER_BFLOAT16 = 3,
  AQUIFER_FLOAT8_E4M3 = 4,
  AQUIFER_FLOAT8_E5M2 = 5,
  AQUIFER_INT8 = 6,
  AQUIFER_UINT8 = 7
};

/* The kind of state that a group of layers keeps. */
enum {
  AQUIFER_KV_FULL = 1,   /* Every token attends to every earlier one. */
  AQUIFER_KV_WINDOW = 2, /* Only the last `window_tokens` are attended to. */
  AQUIFER_KV_LATENT = 3, /* MLA: one latent vector a token; kv_heads is 1 and value_dim 0. */
  AQUIFER_KV_STATE = 4   /* State-space: a snapshot at the block's end, `opaque_bytes` long. */
};

/* The state of a run of matched blocks. */
enum {
  AQUIFER_RUN_READY = 0,        /* aquifer_fetch() will find it. */
  AQUIFER_RUN_BEING_FILLED = 1, /* Another engine computes it right now. Ask again later. */
  AQUIFER_RUN_PENDING = 2       /* A far tier must be asked first. Ask again later. */
};

/* The outcome of reserving a block. */
enum {
  AQUIFER_REFUSED = 0, /* See `refusal`. */
  /* The block is there already. Write nothing. (A block that only a drive has counts until that
   * drive has been out of service for a minute. Then it may be stored again.) */
  AQUIFER_HAVE = 1,
  AQUIFER_BEING_FILLED = 2, /* Another engine fills it, for about `wait_ms` more. */
  AQUIFER_SLOT = 3          /* Write the block into `slot`, then commit or abort. */
};

/* Why a block is not to be stored. None of them is an error: this block is just not kept. */
enum {
  AQUIFER_REFUSAL_NONE = 0,
  AQUIFER_REFUSAL_FULL = 1,     /* No memory that could be freed now. */
  AQUIFER_REFUSAL_QUOTA = 2,    /* The tenant's own ceiling. */
  AQUIFER_REFUSAL_WARMING = 3,  /* Memory is being prepared; a later block may fit. */
  AQUIFER_REFUSAL_DRAINING = 4, /* The node is shutting down. */
  AQUIFER_REFUSAL_TOO_MANY = 5  /* This client holds too many reservations. */
};

/* The caller's knowledge of a conversation. */
enum {
  AQUIFER_SESSION_UNKNOWN = 0,
  AQUIFER_SESSION_WILL_CONTINUE = 1,
  AQUIFER_SESSION_FINISHED = 2
};

/* Whether a session's blocks outlive the node, in its durable tiers. */
enum {
  AQUIFER_DURABILITY_TENANTS = 0, /* As its tenant's blocks. */
  /* The blocks that continue the chain are durable too; a later AQUIFER_DURABILITY_TENANTS does not
   * undo it. */
  AQUIFER_DURABILITY_DURABLE = 1
};

/* The meaning of the dimensions of an engine's tensors. Their order in memory follows from the
 * strides, and may be any:  B pages   2 K, V   H heads of this rank   N tokens of a page   C a
 * vector's elements */
enum {
  AQUIFER_TENSORS_KV_FIRST = 1,   /* vLLM to 0.22: [2, B, N, H, C] a layer. */
  AQUIFER_TENSORS_PAGE_FIRST = 2, /* FlashInfer, vLLM 0.23 to 0.25: [B, 2, N, H, C] a layer. */
  AQUIFER_TENSORS_FUSED = 3,      /* vLLM from 0.26 on: [B, H, N, C], each C a K and then a V. */
  /* The same shape on a CPU: in a page's head all K and then all V, packed for the processor.
   * kv_format must name the packing and the page's size. */
  AQUIFER_TENSORS_CPU_PACKED = 4,
  AQUIFER_TENSORS_LATENT = 5, /* MLA: [B, N, C] a layer. */
  AQUIFER_TENSORS_APART = 6,  /* [B, N, H, C], K in `tensors` and V in `values`. */
  AQUIFER_TENSORS_SLOTS = 7,  /* SGLang: [B * N, H, C], K and V; needs `page_tokens`. */
  /* transformers: [B, H, N, C], K and V; a page is a sequence, as long as its whole blocks. */
  AQUIFER_TENSORS_SEQUENCES = 8,
  /* [B, ...], each page in one run that only the engine understands; needs `page_tokens`. */
  AQUIFER_TENSORS_OPAQUE = 9
};

/* When a load compares a block's checksum with the bytes that it copies. */
enum {
  /* In the same pass. Pages of a block that fails may have been written to. */
  AQUIFER_VERIFY_COPYING = 0,
  /* Before copying: reads twice, and leaves the pages of a failed block unchanged. */
  AQUIFER_VERIFY_FIRST = 1,
  AQUIFER_VERIFY_NEVER = 2
};

/* How drives are read and written. */
enum { AQUIFER_NVME_AUTO = 0, AQUIFER_NVME_URING = 1, AQUIFER_NVME_THREADS = 2 };

/* The version of this interface, now 2. It grows when something is added; existing parts do not
 * change. */
uint32_t aquifer_abi_version(void);
/* The release: "0.1.0". */
const char* aquifer_version(void);

/* "ok", "not found", ... and "unknown" for any other number. */
const char* aquifer_code_name(aquifer_code code);
const char* aquifer_refusal_name(int32_t refusal);
/* The message of the last call on this thread that failed; "" if none has. Valid until the next
 * call on this thread. */
const char* aquifer_error(void);

/* ---- Layouts: how a model's KV looks ---- */

/* Layers that share one shape. Their blocks hold the bytes in the order layer, K then V, head,
 * token. */
typedef struct aquifer_kv_group {
  int32_t kind;  /* AQUIFER_KV_... */
  int32_t dtype; /* AQUIFER_FLOAT32, ... */
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t key_dim;       /* Elements of one head's K for one token. */
  uint32_t value_dim;     /* The same for V. */
  uint32_t window_tokens; /* AQUIFER_KV_WINDOW only. */
  uint32_t reserved;
  /* Blocks that the engine packs in its own way have this many bytes, and the fields above only
   * describe them. 0: the bytes follow from the fields. */
  uint64_t opaque_bytes;
} aquifer_kv_group;

/* Two engines share blocks exactly when their layouts are equal. */
typedef struct aquifer_layout {
  uint32_t size;
  uint32_t tokens_per_block; /* aquifer_tokens_per_block() has the rule that all engines follow. */
  uint8_t model[32];         /* A digest of the model's configuration and weights. */
  /* The engine's own name of the format, 1 to 128 bytes. It changes when the meaning of the bytes
   * changes, and not otherwise. */
  const char* kv_format;
  const aquifer_kv_group* groups; /* 1 to 16. */
  size_t group_count;
} aquifer_layout;

/* The largest power of two in 16...256 whose largest block has at most 8 MiB, else 16.
 * layout->tokens_per_block is ignored. */
aquifer_code aquifer_tokens_per_block(const aquifer_layout* layout, uint32_t* tokens);
/* Fits an engine's pages to the model's blocks. Pages that divide the blocks are grouped. Larger
 * multiples are cut if they can be, and otherwise raise the answer to their own size. Others are
 * refused. */
aquifer_code aquifer_fit_pages(uint32_t tokens_per_block, uint32_t page_tokens, int32_t can_cut,
                               uint32_t* tokens);
aquifer_code aquifer_block_bytes(const aquifer_layout* layout, size_t group, uint64_t* bytes);
/* For aquifer_derive_root(). Returns AQUIFER_INVALID, naming the field, if the layout cannot be
 * stored. */
aquifer_code aquifer_layout_fingerprint(const aquifer_layout* layout, uint8_t fingerprint[32]);

/* ---- Keys: the names of blocks ---- */

typedef struct aquifer_key {
  uint8_t bytes[32];
} aquifer_key;

/* Everything besides tokens that the first key of a chain depends on. */
typedef struct aquifer_chain_root {
  uint32_t size;
  uint32_t reserved;
  const char* tenant; /* 1 to 64 bytes; the one that the client connects as. */
  uint8_t layout_fingerprint[32];
  uint8_t adapter_digest[32]; /* All 0: no adapter. */
  const char* cache_salt;     /* Keeps users of one tenant apart; at most 256 bytes. */
} aquifer_chain_root;

aquifer_code aquifer_derive_root(const aquifer_chain_root* root, aquifer_key* key);

/* Something besides tokens that a block depends on, such as the hash of an image in it. */
typedef struct aquifer_extra {
  size_t block; /* The index of its block in the prompt. */
  uint32_t tag; /* The kind of thing, 1 for an image; docs/formats/key.md. */
  uint32_t reserved;
  const void* value; /* At most 4096 bytes. */
  size_t value_bytes;
} aquifer_extra;

/* One prompt, or the new part of one. */
typedef struct aquifer_prompt {
  aquifer_key parent; /* The root, or the last key of a chain that goes on. */
  const uint32_t* tokens;
  size_t token_count;
  const aquifer_extra* extras; /* Sorted by block. */
  size_t extra_count;
  aquifer_key* keys; /* Answer: one key for each whole block of tokens. */
  size_t key_room;   /* How many keys fit there. */
  size_t key_count;  /* Answer: how many keys there are now. */
} aquifer_prompt;

/* Derives the keys of every whole block of every prompt; tokens of a last partial block get none.
 * On a failure the prompts before the wrong one are done, and the key_count of the wrong one is 0.
 */
aquifer_code aquifer_derive_chains(aquifer_prompt* prompts, size_t prompt_count,
                                   uint32_t tokens_per_block);
/* The same for one prompt without extras. */
aquifer_code aquifer_derive_chain(const aquifer_key* parent, const uint32_t* tokens,
                                  size_t token_count, uint32_t tokens_per_block, aquifer_key* keys,
                                  size_t key_room, size_t* key_count);

/* ---- Checksums: what a commit carries ---- */

/* A partial sum. Pieces of a block can be summed by anyone and in any order, and added field by
 * field. docs/formats/checksum.md has the arithmetic, for summing on a GPU. */
typedef struct aquifer_lane_sums {
  uint64_t a;
  uint64_t b;
} aquifer_lane_sums;

typedef struct aquifer_checksum {
  uint64_t low;
  uint64_t high;
} aquifer_checksum;

/* `offset` is where the piece begins in its block, a multiple of 16. Only a block's last piece may
 * have a length that is not a multiple of 16. */
aquifer_code aquifer_sum_lanes(const void* piece, size_t bytes, uint64_t offset,
                               aquifer_lane_sums* sums);
/* The same while copying to `target`, which does not overlap the piece: one pass, at the speed of a
 * copy. */
aquifer_code aquifer_copy_and_sum_lanes(const void* piece, size_t bytes, uint64_t offset,
                                        void* target, aquifer_lane_sums* sums);
/* The checksum of a whole block, to compare with that of aquifer_fetched. */
aquifer_code aquifer_finish_checksum(const aquifer_lane_sums* sums, uint64_t block_bytes,
                                     aquifer_checksum* checksum);

/* ---- Caches ---- */

/* One client of a cache: one tenant, and one engine or one rank of one. */
typedef struct aquifer_cache aquifer_cache;

typedef struct aquifer_connect_options {
  uint32_t size;
  /* 1: store and load nothing; the node only records the requests. */
  int32_t observe;
  const char* tenant; /* 1 to 64 bytes; null: "local". */
  /* One name for all ranks of an engine, a new one when it restarts; null: a random one. */
  const char* engine;
  /* The node's socket. Null: $AQUIFER_SOCKET, else the first of /run/aquifer/node.sock,
   * $XDG_RUNTIME_DIR/aquifer.sock and /tmp/aquifer-<uid>/node.sock that is there. */
  const char* socket;
  const char* token;     /* Needed if the node has a tenants file. */
  int64_t timeout_nanos; /* For this call; 0: five seconds. */
} aquifer_connect_options;

/* Connects to the cache of the host's node (`aquifer serve`), which must be there. When the node
 * goes away later, every request is AQUIFER_UNAVAILABLE until it is back; the client finds it by
 * itself. Leased bytes stay unchanged until they are released. A node that hangs does not block the
 * client. A request is done at its deadline, or a twentieth of a second later. A node that reads
 * nothing for five to seven seconds counts as gone.
 *
 * A client that holds a lease or reservation for longer than the node's `overdue` (a minute by
 * default) is cut off. All of its open requests are AQUIFER_UNAVAILABLE. All of its reservations
 * are void, for the other ranks of its engine too. It connects again by itself and at once; its
 * leases stay valid until they are released. A client that reads for longer copies the blocks, or
 * releases them and fetches them again in time.
 *
 * Null options are the defaults. */
aquifer_code aquifer_connect(const aquifer_connect_options* options, aquifer_cache** cache);

typedef struct aquifer_tenant_options {
  const char* name;
  uint64_t dram_floor_bytes;   /* Never evicted below this for another tenant's sake. */
  uint64_t dram_ceiling_bytes; /* 0: none. */
  uint64_t nvme_floor_bytes;
  uint64_t nvme_ceiling_bytes; /* 0: none. */
  int64_t ttl_seconds;         /* 0: blocks do not expire. */
} aquifer_tenant_options;

typedef struct aquifer_open_options {
  uint32_t size;
  uint32_t worker_threads; /* 0: 2. */
  const char* tenant;      /* As in aquifer_connect_options. */
  const char* engine;
  uint64_t dram_bytes;                 /* 0: 1 GiB. */
  uint64_t keep_available_bytes;       /* Left free for the rest of the host; 0: 512 MiB. */
  const char* const* nvme_directories; /* One a drive; none: no NVMe tier. */
  size_t nvme_directory_count;
  uint64_t nvme_bytes;             /* Over all directories; 0: 8 GiB. */
  uint64_t nvme_segment_bytes;     /* 0: chosen from nvme_bytes. */
  uint64_t write_bytes_per_second; /* 0: no limit. */
  int32_t nvme_sync;               /* 1: blocks survive power loss too. */
  int32_t nvme_engine;             /* AQUIFER_NVME_AUTO, ... */
  const aquifer_tenant_options* tenants;
  size_t tenant_count;
  int64_t overdue_nanos;               /* When reservations become void; 0: a minute. */
  double assumed_prefill_ms_per_token; /* Until an engine has reported; 0: loading always pays. */
} aquifer_open_options;

/* A cache inside this process, for an engine that shares it with nobody. Null options are the
 * defaults. */
aquifer_code aquifer_open(const aquifer_open_options* options, aquifer_cache** cache);

/* Another client of the same cache, for another thread. Null tenant and engine as above. */
aquifer_code aquifer_join(aquifer_cache* cache, const char* tenant, const char* engine,
                          aquifer_cache** joined);

/* Gives back everything that this client holds: nobody may touch its slots any more. Its open
 * requests are done, with AQUIFER_UNAVAILABLE. Null is ignored. */
void aquifer_close(aquifer_cache* cache);

/* ---- Requests ---- */

typedef struct aquifer_request aquifer_request;

/* Returns null if there is no memory. */
aquifer_request* aquifer_request_new(void);
/* May be called at any time. A request that is not done is cancelled, and memory that it would have
 * been lent goes back. If it is done, the caller keeps its leases and reservations. Null is
 * ignored. */
void aquifer_request_free(aquifer_request* request);

/* Applies all answers that have arrived. `moved`, which may be null, gets the number of requests
 * that moved on. */
aquifer_code aquifer_poll(aquifer_cache* cache, size_t* moved);
/* Polls until the request is done. Returns AQUIFER_LATE if it is not done in time; a negative
 * timeout waits without end. The request's outcome is aquifer_request_status(). */
aquifer_code aquifer_wait(aquifer_cache* cache, aquifer_request* request, int64_t timeout_nanos);
/* For select, poll and epoll: readable when there is news since aquifer_poll() last moved nothing.
 * The descriptor stays the same. -1 for a null cache. */
int aquifer_event_fd(const aquifer_cache* cache);
/* The open blocks of the request get AQUIFER_LATE, soon. The caller still has to wait for the
 * request. */
aquifer_code aquifer_cancel(aquifer_cache* cache, aquifer_request* request);

/* Which blocks a request is about: a run of a chain, in one group of the layout. */
typedef struct aquifer_chain {
  uint32_t layout; /* aquifer_request_layout(); valid for this client only. */
  uint16_t group;  /* Index into the layout's groups. */
  uint16_t part;   /* 0 unless the ranks of one engine span hosts. */
  const aquifer_key* keys;
  size_t key_count; /* At most 1048576. */
} aquifer_chain;

aquifer_code aquifer_register_layout(aquifer_cache* cache, aquifer_request* request,
                                     const aquifer_layout* layout);

/* How much of a chain is there. Answered from memory; reads nothing and lends nothing. */
typedef struct aquifer_match_args {
  uint32_t size;
  uint32_t reserved;
  aquifer_chain chain;
  /* The engine holds this many blocks of the chain already, and wants none of them. */
  uint64_t have;
} aquifer_match_args;
aquifer_code aquifer_match(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_match_args* args);

/* Lends blocks, bringing them to memory first where needed. */
typedef struct aquifer_fetch_args {
  uint32_t size;
  uint32_t reserved;
  aquifer_chain chain;
  int64_t timeout_nanos; /* By then every block is answered; 0: a second. */
} aquifer_fetch_args;
aquifer_code aquifer_fetch(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_fetch_args* args);

/* Asks for slots to store blocks in. Ranks of one engine that reserve the same key get the same
 * slot, and each writes its own heads. */
typedef struct aquifer_reserve_args {
  uint32_t size;
  uint32_t position; /* The index of the first key in its chain. */
  aquifer_chain chain;
  aquifer_key parent;            /* Parent of the first key: the key before it, or the root. */
  const uint64_t* engine_hashes; /* The engine's own hashes, one a key; or null. */
} aquifer_reserve_args;
aquifer_code aquifer_reserve(aquifer_cache* cache, aquifer_request* request,
                             const aquifer_reserve_args* args);

/* Publishes blocks that were written, each one at once and whole. */
typedef struct aquifer_commit_op {
  uint64_t reservation;
  /* The heads that this client wrote, and the sums over their bytes at their places in the block. 0
   * and 0: all heads. */
  uint32_t head_begin;
  uint32_t head_end;
  aquifer_lane_sums sums;
} aquifer_commit_op;
aquifer_code aquifer_commit(aquifer_cache* cache, aquifer_request* request,
                            const aquifer_commit_op* ops, size_t op_count);

/* Done with AQUIFER_OK when every block that this tenant committed before has reached the tier. The
 * blocks then survive whatever the tier survives. Timeout 0: ten seconds.
 *
 * Without NVMe, AQUIFER_NVME waits for the blocks that are to be durable. If the tenant has others,
 * it is AQUIFER_UNAVAILABLE, and the message says how many blocks are in memory alone. The blocks
 * of a drive that has been out of service for a minute count as lost until it is back: DRAM's
 * copies of them are written to other drives, for which a flush waits. */
aquifer_code aquifer_flush(aquifer_cache* cache, aquifer_request* request, int32_t tier,
                           int64_t timeout_nanos);

/* Keeps blocks from being evicted for so many seconds; 0 removes the pin. */
typedef struct aquifer_pin_args {
  uint32_t size;
  uint32_t reserved;
  aquifer_chain chain;
  int64_t seconds;
} aquifer_pin_args;
aquifer_code aquifer_pin(aquifer_cache* cache, aquifer_request* request,
                         const aquifer_pin_args* args);

/* Brings blocks to memory ahead of a fetch and lends nothing. By chain or, when it has no keys, by
 * the name of a session. */
typedef struct aquifer_prestage_args {
  uint32_t size;
  uint32_t reserved;
  aquifer_chain chain;
  const char* session;
  int64_t timeout_nanos; /* 0: ten seconds. */
} aquifer_prestage_args;
aquifer_code aquifer_prestage(aquifer_cache* cache, aquifer_request* request,
                              const aquifer_prestage_args* args);

/* Deletes blocks: with AQUIFER_OK they are gone from every tier, for good. By chain; without keys,
 * by session; or everything of the tenant. */
typedef struct aquifer_evict_args {
  uint32_t size;
  int32_t everything;
  aquifer_chain chain;
  const char* session;
} aquifer_evict_args;
aquifer_code aquifer_evict(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_evict_args* args);

/* Before the process that holds the cache ends: writes everything not yet safe to the lower tiers
 * and takes no new blocks from then on, of any tenant. Timeout 0: thirty seconds. */
aquifer_code aquifer_drain(aquifer_cache* cache, aquifer_request* request, int64_t timeout_nanos);

aquifer_code aquifer_stats(aquifer_cache* cache, aquifer_request* request);

/* ---- Without an answer ---- */

/* These calls ignore unknown leases, reservations and sessions. */

typedef struct aquifer_release_op {
  uint64_t lease;
  int32_t corrupt; /* 1: the reader's own check failed; the block is dropped and counted. */
  uint32_t reserved;
} aquifer_release_op;
/* Gives leases back: nobody may touch their bytes any more. */
aquifer_code aquifer_release(aquifer_cache* cache, const aquifer_release_op* leases,
                             size_t lease_count);
/* Gives back reservations that will not be committed. */
aquifer_code aquifer_abort(aquifer_cache* cache, const uint64_t* reservations,
                           size_t reservation_count);

/* The engine's forecast of a conversation's future. It improves the choice of blocks to keep, and
 * is never needed. */
typedef struct aquifer_hint_args {
  uint32_t size;
  int32_t state;       /* AQUIFER_SESSION_... */
  aquifer_chain chain; /* The chain's last key is enough. */
  const char* session; /* A name for a chain that grows; 1 to 256 bytes. */
  /* The chain's blocks expire after that, or by the tenant's rule if sooner. */
  int64_t ttl_seconds;
  int32_t priority;   /* -8, evicted first, to 7; 0: as usual for the tenant. */
  int32_t durability; /* AQUIFER_DURABILITY_... */
  /* With AQUIFER_SESSION_WILL_CONTINUE, in how many seconds the session goes on; 0: not known.
   * `size` may end before this field. */
  int64_t return_seconds;
} aquifer_hint_args;
aquifer_code aquifer_hint(aquifer_cache* cache, const aquifer_hint_args* args);

/* How long the engine took to compute, so that the cache can tell which blocks are worth loading.
 */
aquifer_code aquifer_report_prefill(aquifer_cache* cache, uint32_t layout, uint32_t tokens,
                                    uint32_t context_tokens, double milliseconds);

/* ---- Answers ---- */

/* Returns 1 if the request is done, else 0. A fresh request is done. */
int32_t aquifer_request_done(const aquifer_request* request);
/* How many blocks (keys, operations) are answered, from the front. */
size_t aquifer_request_completed(const aquifer_request* request);
/* Outcome of the whole request, once it is done. AQUIFER_OK even if every block of it failed. Its
 * message is in aquifer_error() as well. */
aquifer_code aquifer_request_status(const aquifer_request* request);
/* The message; "" if there is none. This and every other text of an answer is valid until the
 * request is used again or freed. */
const char* aquifer_request_message(const aquifer_request* request);
/* The message for one answered block of a fetch or a commit. */
const char* aquifer_request_block_message(const aquifer_request* request, size_t block);

/* The functions below copy answers out. AQUIFER_INVALID: the request was of another kind, or the
 * answer is not there yet. Those with `first` and `count` fill so many items of an array. */

/* The answer of aquifer_register_layout(). */
aquifer_code aquifer_request_layout(const aquifer_request* request, uint32_t* layout);

typedef struct aquifer_matched {
  uint32_t size;
  uint32_t reserved;
  uint64_t matched; /* Blocks that can be fetched, from keys[have] on without a gap. */
  /* aquifer_request_runs(): the matched blocks, then at most one run not ready. */
  uint64_t run_count;
  uint64_t pays;       /* How many of them are faster loaded than computed. */
  double load_ms;      /* To load those blocks. */
  double recompute_ms; /* To compute the same blocks; 0 while nothing was reported. */
} aquifer_matched;
aquifer_code aquifer_request_matched(const aquifer_request* request, aquifer_matched* matched);

/* Neighbouring blocks in the same state and tier. */
typedef struct aquifer_run {
  uint64_t first; /* Index into the keys. */
  uint64_t count;
  int32_t tier;
  int32_t state;       /* AQUIFER_RUN_... */
  double estimated_ms; /* To load this run alone, at the present load. */
} aquifer_run;
aquifer_code aquifer_request_runs(const aquifer_request* request, size_t first, aquifer_run* runs,
                                  size_t count);

typedef struct aquifer_fetched {
  aquifer_code code;   /* AQUIFER_OK, or why there are no bytes. */
  int32_t tier;        /* The tier where the block was. */
  const uint8_t* data; /* The block, in place, until the lease is released. */
  uint64_t data_bytes;
  uint64_t lease; /* For aquifer_release(). 0: none. */
  /* The checksum of `data`. A reader may check it in the pass that copies. */
  aquifer_checksum checksum;
} aquifer_fetched;
aquifer_code aquifer_request_fetched(const aquifer_request* request, size_t first,
                                     aquifer_fetched* blocks, size_t count);

typedef struct aquifer_reserved {
  int32_t outcome; /* AQUIFER_SLOT, ... */
  int32_t refusal; /* AQUIFER_REFUSAL_... */
  double wait_ms;
  uint64_t reservation; /* For aquifer_commit() or aquifer_abort(). 0: none. */
  uint8_t* slot;        /* Exactly one block, to be written. */
  uint64_t slot_bytes;
} aquifer_reserved;
aquifer_code aquifer_request_reserved(const aquifer_request* request, size_t first,
                                      aquifer_reserved* blocks, size_t count);

typedef struct aquifer_committed {
  aquifer_code code; /* AQUIFER_INVALID: the reservation is unknown, void or overlapping. */
  int32_t published; /* 1: every head is there; from now on the block is served. */
} aquifer_committed;
aquifer_code aquifer_request_committed(const aquifer_request* request, size_t first,
                                       aquifer_committed* blocks, size_t count);

/* The counts of pin, prestage, evict and drain. A field that the request does not have is 0. */
typedef struct aquifer_counts {
  uint32_t size;
  uint32_t reserved;
  uint64_t pinned; /* Keys that were there. */
  uint64_t found;  /* Blocks known under that name. */
  uint64_t staged; /* How many of them are in memory now. */
  uint64_t evicted;
  uint64_t left; /* Blocks that are still in memory alone. */
} aquifer_counts;
aquifer_code aquifer_request_counts(const aquifer_request* request, aquifer_counts* counts);

/* The answer of aquifer_stats(): how many tiers and counters there are. Either may be null. */
aquifer_code aquifer_request_stats(const aquifer_request* request, size_t* tier_count,
                                   size_t* counter_count);

typedef struct aquifer_tier_stats {
  int32_t tier;
  int32_t in_service;
  uint64_t capacity_bytes;
  uint64_t used_bytes;
  uint64_t blocks;
  uint64_t tenant_bytes; /* Bytes of the asking tenant. */
  double read_gbps;      /* Observed; 0: nothing yet. */
  uint64_t drive_count;  /* aquifer_request_drives(). */
} aquifer_tier_stats;
aquifer_code aquifer_request_tiers(const aquifer_request* request, size_t first,
                                   aquifer_tier_stats* tiers, size_t count);

typedef struct aquifer_drive_stats {
  const char* directory;
  const char* why; /* Why the drive is not in service, or not writable. */
  int32_t in_service;
  int32_t writable;
} aquifer_drive_stats;
/* `tier` is an index, as in aquifer_request_tiers(). */
aquifer_code aquifer_request_drives(const aquifer_request* request, size_t tier, size_t first,
                                    aquifer_drive_stats* drives, size_t count);

/* By name, in a fixed order; docs/operating/metrics.md lists them. */
typedef struct aquifer_counter {
  const char* name;
  uint64_t value;
} aquifer_counter;
aquifer_code aquifer_request_counters(const aquifer_request* request, size_t first,
                                      aquifer_counter* counters, size_t count);

/* ---- Engines: KV between tensors and slots ---- */

/* The engine's own memory, which must stay where it is while a map of it is in use. It is the
 * host's or a CUDA device's, as its address shows. All tensors of one map are in the same of the
 * two. */
typedef struct aquifer_tensor {
  void* data;     /* The first element. */
  uint64_t bytes; /* From there to the end of the storage; nothing outside is ever touched. */
  const uint64_t* shape;
  const uint64_t* strides;  /* In elements, as torch gives them. */
  uint32_t dimension_count; /* Of `shape` and `strides`. */
  uint32_t element_bytes;
} aquifer_tensor;

/* Where an engine, or one rank of it, keeps the KV of one group. */
typedef struct aquifer_tensors {
  uint32_t size;
  int32_t family; /* AQUIFER_TENSORS_... */
  const aquifer_layout* layout;
  uint32_t group;
  /* The heads of the group that are in these tensors (aquifer_heads_of_rank). 0 and 0: all. */
  uint32_t head_begin;
  uint32_t head_end;
  uint32_t page_tokens; /* AQUIFER_TENSORS_SLOTS and _OPAQUE only. */
  int32_t
      /* 1: one tensor with the layers as first dimension, instead of a tensor a layer. */
      layers_in_front;
  uint32_t reserved;
  const aquifer_tensor* tensors;
  size_t tensor_count;
  const aquifer_tensor* values; /* Only if K and V are apart. */
  size_t value_count;
} aquifer_tensors;

/* A map from an engine's tensors to blocks. Any number of threads may use it. */
typedef struct aquifer_tensor_map aquifer_tensor_map;

/* Returns AQUIFER_INVALID, naming the tensor and its mistake, if the description does not fit the
 * layout, touches bytes outside of the tensors, or touches bytes twice. */
aquifer_code aquifer_map_tensors(const aquifer_tensors* tensors, aquifer_tensor_map** map);
/* Null is ignored. */
void aquifer_tensor_map_free(aquifer_tensor_map* map);

typedef struct aquifer_tensor_facts {
  uint32_t size;
  uint32_t tokens_per_block;
  uint32_t pages_per_block; /* More than one if pages are grouped. */
  uint32_t blocks_per_page; /* More than one if pages are cut. */
  uint64_t page_count;
  uint64_t block_bytes; /* Of whole blocks, all heads. */
} aquifer_tensor_facts;
aquifer_code aquifer_tensor_map_facts(const aquifer_tensor_map* map, aquifer_tensor_facts* facts);

/* The heads of a tensor-parallel rank; `writes` is 0 if a lower rank has the same heads. */
aquifer_code aquifer_heads_of_rank(uint32_t kv_heads, uint32_t ranks, uint32_t rank,
                                   uint32_t* head_begin, uint32_t* head_end, int32_t* writes);

/* A block in the engine, and in a slot. */
typedef struct aquifer_copy_op {
  const uint32_t* pages; /* The page table of a sequence, as the engine has it. */
  size_t page_count;
  uint64_t block; /* The index of the block in the sequence. */
  void* slot;     /* Exactly one block. Only this rank's heads are touched. */
  uint64_t slot_bytes;
  aquifer_checksum checksum; /* To scatter: the checksum of the whole block. */
  aquifer_lane_sums sums;    /* Answer: the sums of the copied bytes, for aquifer_commit_op. */
  aquifer_code code;         /* Answer: one block's failure does not affect the others. */
  uint32_t reserved;
} aquifer_copy_op;
/* From pages to slots, and back. Both run on the caller's thread. AQUIFER_OK even if blocks fail.
 * Tensors in a device's memory are AQUIFER_INVALID here: the two calls below move those. */
aquifer_code aquifer_gather(const aquifer_tensor_map* map, aquifer_copy_op* ops, size_t op_count);
aquifer_code aquifer_scatter(const aquifer_tensor_map* map, int32_t verify, aquifer_copy_op* ops,
                             size_t op_count);

/* aquifer_load() and aquifer_store() do all the steps and return when they are done or their time
 * is over. They wait inside of the call: an engine makes them on a thread of its own, with a cache
 * of its own (aquifer_join).
 *
 * Tensors in a CUDA device's memory are copied by the device, on streams of our own. Work of the
 * engine on these pages must be over before the call (cudaEventSynchronize); work after the call
 * finds the blocks there. An error of the device is AQUIFER_UNAVAILABLE for the blocks concerned
 * and for all later ones of this cache; it ends nothing else. */

/* Fetches blocks, copies each into its pages while the next are being read, and gives them back. */
typedef struct aquifer_load_args {
  uint32_t size;
  int32_t verify; /* AQUIFER_VERIFY_... */
  aquifer_chain chain;
  const aquifer_tensor_map* map;
  const uint32_t* pages;
  size_t page_count;
  uint64_t first_block;  /* The index in the sequence of the block that the first key names. */
  int64_t timeout_nanos; /* For the whole call; 0: a second. */
} aquifer_load_args;

typedef struct aquifer_loaded {
  uint32_t size;
  aquifer_code code; /* Why the next block was not loaded; AQUIFER_OK: all were. */
  uint64_t blocks;   /* Blocks loaded, from the front without a gap. Compute the blocks behind. */
  uint64_t bytes;
  uint64_t tier_blocks[4]; /* How many came from each tier; the index is AQUIFER_DRAM, ... */
} aquifer_loaded;
/* AQUIFER_OK even if few or no blocks were loaded. */
aquifer_code aquifer_load(aquifer_cache* cache, const aquifer_load_args* args,
                          aquifer_loaded* loaded);

/* Reserves slots, copies blocks into those that are new, summing them, and commits. */
typedef struct aquifer_store_args {
  uint32_t size;
  uint32_t position; /* The index of the first key in its chain. */
  aquifer_chain chain;
  aquifer_key parent;            /* Parent of the first key: the key before it, or the root. */
  const uint64_t* engine_hashes; /* The engine's own hashes, one a key; or null. */
  const aquifer_tensor_map* map;
  const uint32_t* pages;
  size_t page_count;
  uint64_t first_block; /* The index in the sequence of the block that the first key names. */
  int64_t
      /* For the whole call, with the time in which memory is prepared; 0: ten seconds. */
      timeout_nanos;
} aquifer_store_args;

typedef struct aquifer_stored {
  uint32_t size;
  int32_t refusal;       /* AQUIFER_REFUSAL_..., of the last block that was refused. */
  uint64_t stored;       /* Written and committed by this rank. */
  uint64_t published;    /* Stored blocks that have all heads; the others wait for other ranks. */
  uint64_t had;          /* The cache had them already. */
  uint64_t being_filled; /* Another engine stores them just now. */
  uint64_t refused;
  uint64_t failed; /* Reservations that became void, or the time was over. */
  uint64_t bytes;
} aquifer_stored;
/* AQUIFER_OK even if few or no blocks were stored. Otherwise the request was wrong or the node is
 * gone, and *stored says how far it got. */
aquifer_code aquifer_store(aquifer_cache* cache, const aquifer_store_args* args,
                           aquifer_stored* stored);

#ifdef __cplusplus
}
#endif

#endif /* AQUIFER_AQUIFER_H */
/* NOLINTEND */
