/* The C ABI, from C: every call of include/aquifer/aquifer.h, over a node whose socket is the
 * argument, and inside this process. Wrong arguments are told so and crash nothing. */
#include <aquifer/aquifer.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4, BLOCK_BYTES = 64 << 10, TOKENS = 16 };

static void Check(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "c_api_test.c:%d: %s (%s)\n", line, what, aquifer_error());
  exit(1);
}
#define CHECK(condition) Check((condition) ? 1 : 0, #condition, __LINE__)
#define CHECK_OK(call) CHECK((call) == AQUIFER_OK)
#define CHECK_INVALID(call) CHECK((call) == AQUIFER_INVALID && *aquifer_error() != '\0')

/* ---- What it works with ---- */

typedef struct Engine {
  aquifer_cache* cache;
  aquifer_request* request;
  aquifer_layout layout;
  aquifer_kv_group group;
  aquifer_key root;
  aquifer_key keys[BLOCKS];
  aquifer_chain chain;
} Engine;

static void Finish(Engine* engine) {
  CHECK_OK(aquifer_wait(engine->cache, engine->request, -1));
  CHECK(aquifer_request_done(engine->request));
  if (aquifer_request_status(engine->request) == AQUIFER_OK) return;
  fprintf(stderr, "%s\n", aquifer_request_message(engine->request));
  CHECK(0);
}

static void DescribeLayout(Engine* engine) {
  memset(engine, 0, sizeof(*engine));
  engine->group.kind = AQUIFER_KV_FULL;
  engine->group.dtype = AQUIFER_BFLOAT16;
  engine->group.opaque_bytes = BLOCK_BYTES;
  engine->layout.size = sizeof(engine->layout);
  engine->layout.tokens_per_block = TOKENS;
  engine->layout.kv_format = "c_api_test";
  engine->layout.groups = &engine->group;
  engine->layout.group_count = 1;
}

static void Begin(Engine* engine, uint32_t first_token) {
  CHECK_OK(aquifer_register_layout(engine->cache, engine->request, &engine->layout));
  Finish(engine);
  CHECK_OK(aquifer_request_layout(engine->request, &engine->chain.layout));
  CHECK(engine->chain.layout != 0);

  aquifer_chain_root root = {.size = sizeof(root), .tenant = "local"};
  CHECK_OK(aquifer_layout_fingerprint(&engine->layout, root.layout_fingerprint));
  CHECK_OK(aquifer_derive_root(&root, &engine->root));
  uint32_t tokens[BLOCKS * TOKENS];
  for (uint32_t i = 0; i < BLOCKS * TOKENS; ++i) tokens[i] = first_token + i;
  CHECK_OK(aquifer_derive_chain(&engine->root, tokens, BLOCKS * TOKENS, TOKENS, engine->keys,
                                BLOCKS, &engine->chain.key_count));
  CHECK(engine->chain.key_count == BLOCKS);
  engine->chain.keys = engine->keys;
}

static uint64_t Matched(Engine* engine) {
  aquifer_match_args args = {.size = sizeof(args), .chain = engine->chain};
  CHECK_OK(aquifer_match(engine->cache, engine->request, &args));
  Finish(engine);
  aquifer_matched matched = {.size = sizeof(matched)};
  CHECK_OK(aquifer_request_matched(engine->request, &matched));
  if (matched.run_count > 0) {
    aquifer_run run;
    CHECK_OK(aquifer_request_runs(engine->request, 0, &run, 1));
    CHECK(run.first == 0 && run.count == matched.matched && run.tier == AQUIFER_DRAM &&
          run.state == AQUIFER_RUN_READY);
  }
  CHECK_INVALID(aquifer_request_runs(engine->request, matched.run_count, NULL, 1));
  return matched.matched;
}

static void Reserve(Engine* engine, aquifer_reserved* slots) {
  const uint64_t names[BLOCKS] = {1, 2, 3, 4};
  aquifer_reserve_args args = {.size = sizeof(args), .chain = engine->chain};
  args.parent = engine->root;
  args.engine_hashes = names;
  for (;;) {
    CHECK_OK(aquifer_reserve(engine->cache, engine->request, &args));
    Finish(engine);
    CHECK(aquifer_request_completed(engine->request) == BLOCKS);
    CHECK_OK(aquifer_request_reserved(engine->request, 0, slots, BLOCKS));
    int warming = 0; /* Memory may still be in preparation, for some of them or for all. */
    for (int i = 0; i < BLOCKS; ++i) warming += slots[i].refusal == AQUIFER_REFUSAL_WARMING;
    if (warming == 0) return;
    for (int i = 0; i < BLOCKS; ++i) {
      CHECK_OK(aquifer_abort(engine->cache, &slots[i].reservation, 1));
    }
  }
}

static void Store(Engine* engine) {
  aquifer_reserved slots[BLOCKS];
  Reserve(engine, slots);
  uint8_t* kv = malloc(BLOCK_BYTES);
  aquifer_commit_op ops[BLOCKS] = {{0}};
  for (int i = 0; i < BLOCKS; ++i) {
    CHECK(slots[i].outcome == AQUIFER_SLOT && slots[i].slot_bytes == BLOCK_BYTES);
    memset(kv, i + 1, BLOCK_BYTES);
    ops[i].reservation = slots[i].reservation;
    CHECK_OK(aquifer_copy_and_sum_lanes(kv, BLOCK_BYTES, 0, slots[i].slot, &ops[i].sums));
  }
  free(kv);
  CHECK_OK(aquifer_commit(engine->cache, engine->request, ops, BLOCKS));
  Finish(engine);
  aquifer_committed committed[BLOCKS];
  CHECK_OK(aquifer_request_committed(engine->request, 0, committed, BLOCKS));
  for (int i = 0; i < BLOCKS; ++i) CHECK(committed[i].code == AQUIFER_OK && committed[i].published);
  /* The reservations are used up. */
  CHECK_OK(aquifer_commit(engine->cache, engine->request, ops, 1));
  Finish(engine);
  CHECK_OK(aquifer_request_committed(engine->request, 0, committed, 1));
  CHECK(committed[0].code == AQUIFER_INVALID && !committed[0].published);
  CHECK(*aquifer_request_block_message(engine->request, 0) != '\0');
}

/* How many blocks come back with their stored bytes. */
static int Recalled(Engine* engine) {
  aquifer_fetch_args args = {.size = sizeof(args), .chain = engine->chain};
  args.timeout_nanos = 30000000000;
  CHECK_OK(aquifer_fetch(engine->cache, engine->request, &args));
  Finish(engine);
  aquifer_fetched blocks[BLOCKS];
  CHECK_OK(aquifer_request_fetched(engine->request, 0, blocks, BLOCKS));
  int right = 0;
  for (int i = 0; i < BLOCKS; ++i) {
    if (blocks[i].code == AQUIFER_NOT_FOUND) continue;
    CHECK(blocks[i].code == AQUIFER_OK && blocks[i].data_bytes == BLOCK_BYTES);
    aquifer_lane_sums sums;
    aquifer_checksum checksum;
    CHECK_OK(aquifer_sum_lanes(blocks[i].data, blocks[i].data_bytes, 0, &sums));
    CHECK_OK(aquifer_finish_checksum(&sums, BLOCK_BYTES, &checksum));
    CHECK(checksum.low == blocks[i].checksum.low && checksum.high == blocks[i].checksum.high);
    right += blocks[i].data[0] == i + 1 && blocks[i].data[BLOCK_BYTES - 1] == i + 1;
    const aquifer_release_op release = {.lease = blocks[i].lease};
    CHECK_OK(aquifer_release(engine->cache, &release, 1));
  }
  return right;
}

static uint64_t Counter(Engine* engine, const char* name) {
  CHECK_OK(aquifer_stats(engine->cache, engine->request));
  Finish(engine);
  size_t count = 0;
  CHECK_OK(aquifer_request_stats(engine->request, NULL, &count));
  for (size_t i = 0; i < count; ++i) {
    aquifer_counter counter;
    CHECK_OK(aquifer_request_counters(engine->request, i, &counter, 1));
    if (strcmp(counter.name, name) == 0) return counter.value;
  }
  CHECK(0);
  return 0;
}

static aquifer_counts Counts(Engine* engine) {
  Finish(engine);
  aquifer_counts counts = {.size = sizeof(counts)};
  CHECK_OK(aquifer_request_counts(engine->request, &counts));
  return counts;
}

/* ---- What it looks at ---- */

static void StoresAndRecalls(Engine* engine) {
  CHECK(Matched(engine) == 0);
  CHECK(Recalled(engine) == 0);
  Store(engine);
  CHECK(Matched(engine) == BLOCKS);
  CHECK(Recalled(engine) == BLOCKS);
  CHECK(Counter(engine, "fetch_hits_dram") >= BLOCKS);
  aquifer_reserved again[BLOCKS];
  Reserve(engine, again);
  for (int i = 0; i < BLOCKS; ++i) CHECK(again[i].outcome == AQUIFER_HAVE);
}

static void TakesCare(Engine* engine) {
  aquifer_pin_args pin = {.size = sizeof(pin), .chain = engine->chain, .seconds = 60};
  CHECK_OK(aquifer_pin(engine->cache, engine->request, &pin));
  CHECK(Counts(engine).pinned == BLOCKS);

  aquifer_hint_args hint = {.size = sizeof(hint), .chain = engine->chain, .session = "talk"};
  hint.state = AQUIFER_SESSION_WILL_CONTINUE;
  hint.priority = 7;
  CHECK_OK(aquifer_hint(engine->cache, &hint));
  hint.durability = AQUIFER_DURABILITY_DURABLE;
  hint.return_seconds = 90;
  CHECK_OK(aquifer_hint(engine->cache, &hint));
  hint.size =
      /* An older size: the fields behind it are not read. */
      offsetof(aquifer_hint_args, return_seconds);
  hint.return_seconds = -1;
  CHECK_OK(aquifer_hint(engine->cache, &hint));
  CHECK_OK(aquifer_report_prefill(engine->cache, engine->chain.layout, 64, 0, 1.5));
  aquifer_prestage_args stage = {.size = sizeof(stage), .session = "talk"};
  CHECK_OK(aquifer_prestage(engine->cache, engine->request, &stage));
  const aquifer_counts staged = Counts(engine);
  CHECK(staged.found == BLOCKS && staged.staged == BLOCKS);

  CHECK_OK(aquifer_flush(engine->cache, engine->request, AQUIFER_DRAM, 0));
  CHECK_OK(aquifer_wait(engine->cache, engine->request, -1));

  size_t tier_count = 0;
  CHECK_OK(aquifer_stats(engine->cache, engine->request));
  Finish(engine);
  CHECK_OK(aquifer_request_stats(engine->request, &tier_count, NULL));
  aquifer_tier_stats tier;
  CHECK(tier_count >= 1);
  CHECK_OK(aquifer_request_tiers(engine->request, 0, &tier, 1));
  CHECK(tier.tier == AQUIFER_DRAM && tier.in_service && tier.tenant_bytes >= BLOCK_BYTES);
  CHECK_OK(aquifer_request_drives(engine->request, 0, 0, NULL, 0));

  aquifer_evict_args evict = {.size = sizeof(evict), .session = "talk"};
  CHECK_OK(aquifer_evict(engine->cache, engine->request, &evict));
  CHECK(Counts(engine).evicted == BLOCKS);
  CHECK(Matched(engine) == 0);
}

static void AbortsAndCancels(Engine* engine) {
  aquifer_reserved slots[BLOCKS];
  Reserve(engine, slots);
  uint64_t reservations[BLOCKS];
  for (int i = 0; i < BLOCKS; ++i) reservations[i] = slots[i].reservation;
  CHECK_OK(aquifer_abort(engine->cache, reservations, BLOCKS));
  Reserve(engine, slots); /* The slots can be had again. */
  CHECK(slots[0].outcome == AQUIFER_SLOT);
  for (int i = 0; i < BLOCKS; ++i) reservations[i] = slots[i].reservation;
  CHECK_OK(aquifer_abort(engine->cache, reservations, BLOCKS));

  aquifer_match_args args = {.size = sizeof(args), .chain = engine->chain};
  CHECK_OK(aquifer_match(engine->cache, engine->request, &args));
  CHECK(!aquifer_request_done(engine->request));
  CHECK(aquifer_match(engine->cache, engine->request, &args) == AQUIFER_BUSY);
  CHECK_OK(aquifer_cancel(engine->cache, engine->request));
  CHECK_OK(aquifer_wait(engine->cache, engine->request, -1));
  CHECK_OK(aquifer_cancel(engine->cache, engine->request)); /* Too late, and harmless. */
}

/* Polls as an engine with an event loop does. */
static void PollsWithItsDescriptor(Engine* engine) {
  aquifer_match_args args = {.size = sizeof(args), .chain = engine->chain};
  CHECK_OK(aquifer_match(engine->cache, engine->request, &args));
  while (!aquifer_request_done(engine->request)) {
    size_t moved = 0;
    CHECK_OK(aquifer_poll(engine->cache, &moved));
    if (moved > 0) continue;
    struct pollfd ready = {.fd = aquifer_event_fd(engine->cache), .events = POLLIN};
    CHECK(poll(&ready, 1, 20000) == 1);
  }
  CHECK_OK(aquifer_request_status(engine->request));
}

/* A request that is freed before it is done gives its loans back. */
static void ForgetsRequests(Engine* engine) {
  Store(engine);
  aquifer_fetch_args args = {.size = sizeof(args), .chain = engine->chain};
  aquifer_request* forgotten = aquifer_request_new();
  CHECK_OK(aquifer_fetch(engine->cache, forgotten, &args));
  aquifer_request_free(forgotten);
  aquifer_reserve_args reserve = {.size = sizeof(reserve), .chain = engine->chain};
  reserve.chain.key_count = 1;
  forgotten = aquifer_request_new();
  CHECK_OK(aquifer_reserve(engine->cache, forgotten, &reserve));
  aquifer_request_free(forgotten);
  while (Counter(engine, "lent_slots") != 0) {
  }
}

static void ClosesWithARequestOpen(Engine* engine) {
  aquifer_cache* joined = NULL;
  CHECK_OK(aquifer_join(engine->cache, NULL, "another", &joined));
  aquifer_match_args args = {.size = sizeof(args), .chain = engine->chain};
  CHECK_OK(aquifer_match(joined, engine->request, &args));
  /* The request was not begun on this cache. */
  CHECK_INVALID(aquifer_wait(engine->cache, engine->request, 0));
  aquifer_close(joined);
  CHECK(aquifer_request_done(engine->request));
  CHECK(aquifer_request_status(engine->request) == AQUIFER_UNAVAILABLE);
  CHECK(strstr(aquifer_request_message(engine->request), "closed") != NULL);
}

static void DerivesInBulk(void) {
  const aquifer_key parent = {{1}};
  uint32_t tokens[100];
  for (uint32_t i = 0; i < 100; ++i) tokens[i] = i;
  aquifer_key keys[6], same[6], other[6];
  size_t count = 0;
  CHECK_OK(aquifer_derive_chain(&parent, tokens, 100, 16, keys, 6, &count));
  CHECK(count == 6);
  const aquifer_extra image = {.block = 1, .tag = 1, .value = "cat", .value_bytes = 3};
  aquifer_prompt prompts[2] = {{.parent = parent, .tokens = tokens, .token_count = 100}};
  prompts[1] = prompts[0];
  prompts[0].keys = same;
  prompts[1].keys = other;
  prompts[0].key_room = prompts[1].key_room = 6;
  prompts[1].extras = &image;
  prompts[1].extra_count = 1;
  CHECK_OK(aquifer_derive_chains(prompts, 2, 16));
  CHECK(prompts[0].key_count == 6 && prompts[1].key_count == 6);
  CHECK(memcmp(keys, same, sizeof(keys)) == 0);
  CHECK(memcmp(&keys[0], &other[0], sizeof(keys[0])) == 0);
  CHECK(memcmp(&keys[1], &other[1], sizeof(keys[1])) != 0);
  prompts[1].key_room = 5;
  CHECK_INVALID(aquifer_derive_chains(prompts, 2, 16));
  CHECK(prompts[0].key_count == 6 && prompts[1].key_count == 0);
  CHECK_INVALID(aquifer_derive_chain(&parent, tokens, 100, 0, keys, 6, &count));
  CHECK(count == 0);
}

static void KnowsLayouts(Engine* engine) {
  uint32_t tokens = 0;
  uint64_t bytes = 0;
  CHECK_OK(aquifer_tokens_per_block(&engine->layout, &tokens));
  CHECK(tokens == 256);
  CHECK_OK(aquifer_block_bytes(&engine->layout, 0, &bytes));
  CHECK(bytes == BLOCK_BYTES);
  CHECK_INVALID(aquifer_block_bytes(&engine->layout, 1, &bytes));
  CHECK_OK(aquifer_fit_pages(256, 16, 0, &tokens));
  CHECK(tokens == 256);
  CHECK_INVALID(aquifer_fit_pages(256, 17, 0, &tokens));
  CHECK(strstr(aquifer_error(), "17") != NULL);
}

/* ---- Wrong arguments ---- */

static void RefusesNull(Engine* engine) {
  aquifer_cache* const cache = engine->cache;
  aquifer_request* const request = engine->request;
  CHECK_INVALID(aquifer_connect(NULL, NULL));
  CHECK_INVALID(aquifer_open(NULL, NULL));
  CHECK_INVALID(aquifer_join(cache, NULL, NULL, NULL));
  CHECK_INVALID(aquifer_poll(NULL, NULL));
  CHECK_INVALID(aquifer_wait(NULL, request, 0));
  CHECK_INVALID(aquifer_wait(cache, NULL, 0));
  CHECK_INVALID(aquifer_cancel(cache, NULL));
  CHECK_INVALID(aquifer_register_layout(cache, request, NULL));
  CHECK_INVALID(aquifer_match(cache, request, NULL));
  CHECK_INVALID(aquifer_match(NULL, request, NULL));
  CHECK_INVALID(aquifer_fetch(cache, request, NULL));
  CHECK_INVALID(aquifer_reserve(cache, request, NULL));
  CHECK_INVALID(aquifer_commit(cache, request, NULL, 1));
  CHECK_INVALID(aquifer_commit(cache, NULL, NULL, 0));
  CHECK_INVALID(aquifer_flush(NULL, request, AQUIFER_NVME, 0));
  CHECK_INVALID(aquifer_pin(cache, request, NULL));
  CHECK_INVALID(aquifer_prestage(cache, request, NULL));
  CHECK_INVALID(aquifer_evict(cache, request, NULL));
  CHECK_INVALID(aquifer_drain(cache, NULL, 0));
  CHECK_INVALID(aquifer_stats(cache, NULL));
  CHECK_INVALID(aquifer_release(cache, NULL, 1));
  CHECK_INVALID(aquifer_abort(cache, NULL, 1));
  CHECK_INVALID(aquifer_hint(cache, NULL));
  CHECK_INVALID(aquifer_report_prefill(NULL, 1, 1, 1, 1));
  CHECK_INVALID(aquifer_request_status(NULL));
  CHECK_INVALID(aquifer_request_layout(NULL, NULL));
  CHECK_INVALID(aquifer_request_matched(NULL, NULL));
  CHECK_INVALID(aquifer_request_fetched(NULL, 0, NULL, 0));
  CHECK_INVALID(aquifer_request_counts(NULL, NULL));
  CHECK_INVALID(aquifer_request_stats(NULL, NULL, NULL));
  CHECK_INVALID(aquifer_derive_root(NULL, NULL));
  CHECK_INVALID(aquifer_derive_chains(NULL, 1, 16));
  CHECK_INVALID(aquifer_derive_chain(NULL, NULL, 0, 16, NULL, 0, NULL));
  CHECK_INVALID(aquifer_sum_lanes(NULL, 16, 0, NULL));
  CHECK_INVALID(aquifer_finish_checksum(NULL, 0, NULL));
  CHECK_INVALID(aquifer_layout_fingerprint(NULL, NULL));
  CHECK(aquifer_event_fd(NULL) == -1);
  CHECK(aquifer_request_done(NULL) == 1 && aquifer_request_completed(NULL) == 0);
  CHECK(*aquifer_request_message(NULL) == '\0' && *aquifer_request_block_message(NULL, 0) == '\0');
  aquifer_close(NULL);
  aquifer_request_free(NULL);
}

static void RefusesWrongSizes(Engine* engine) {
  aquifer_cache* none = NULL;
  aquifer_connect_options connect = {.size = sizeof(connect) - 1};
  CHECK_INVALID(aquifer_connect(&connect, &none));
  CHECK(strstr(aquifer_error(), "size") != NULL && none == NULL);
  aquifer_open_options open = {.size = 0};
  CHECK_INVALID(aquifer_open(&open, &none));
  aquifer_match_args match = {.chain = engine->chain};
  CHECK_INVALID(aquifer_match(engine->cache, engine->request, &match));
  aquifer_fetch_args fetch = {.size = 8, .chain = engine->chain};
  CHECK_INVALID(aquifer_fetch(engine->cache, engine->request, &fetch));
  aquifer_hint_args hint = {.size = UINT32_MAX};
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  Matched(engine);
  aquifer_matched matched = {.size = sizeof(matched) - 8};
  CHECK_INVALID(aquifer_request_matched(engine->request, &matched));

  /* Two structs of a later version: one whose new field is not used, and one whose is. */
  struct {
    aquifer_match_args known;
    uint64_t later;
  } grown = {.known = {.size = sizeof(grown), .chain = engine->chain}, .later = 0};
  CHECK_OK(aquifer_match(engine->cache, engine->request, &grown.known));
  Finish(engine);
  grown.later = 1;
  CHECK_INVALID(aquifer_match(engine->cache, engine->request, &grown.known));
}

static void RefusesNonsense(Engine* engine) {
  aquifer_match_args match = {.size = sizeof(match), .chain = engine->chain};
  match.chain.keys = NULL;
  CHECK_INVALID(aquifer_match(engine->cache, engine->request, &match));
  match.chain = engine->chain;
  match.chain.key_count = SIZE_MAX;
  CHECK_INVALID(aquifer_match(engine->cache, engine->request, &match));
  CHECK_INVALID(aquifer_flush(engine->cache, engine->request, 4, 0));
  CHECK_INVALID(aquifer_flush(engine->cache, engine->request, -1, 0));
  CHECK_INVALID(aquifer_report_prefill(engine->cache, 1, 1, 1, -1.0));
  aquifer_hint_args hint = {.size = sizeof(hint), .chain = engine->chain, .state = 3};
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  hint.state = 0;
  hint.priority = 8;
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  hint.priority = 0;
  hint.durability = 2;
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  hint.durability = 0;
  hint.return_seconds = -1;
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  hint.return_seconds = 0;
  hint.size = offsetof(aquifer_hint_args, return_seconds) - 1;
  CHECK_INVALID(aquifer_hint(engine->cache, &hint));
  char name[300];
  memset(name, 'x', sizeof(name));
  name[sizeof(name) - 1] = '\0';
  aquifer_evict_args evict = {.size = sizeof(evict), .session = name};
  CHECK_INVALID(aquifer_evict(engine->cache, engine->request, &evict));
  aquifer_layout layout = engine->layout;
  layout.group_count = 17;
  CHECK_INVALID(aquifer_register_layout(engine->cache, engine->request, &layout));
  layout.group_count = 0;
  CHECK_INVALID(aquifer_register_layout(engine->cache, engine->request, &layout));
  aquifer_kv_group group = engine->group;
  layout.group_count = 1;
  layout.groups = &group;
  group.dtype = 8;
  CHECK_INVALID(aquifer_register_layout(engine->cache, engine->request, &layout));
  aquifer_lane_sums sums;
  CHECK_INVALID(aquifer_sum_lanes(name, 16, 8, &sums));
  /* Answers of another kind, and answers that are not there. */
  Matched(engine);
  aquifer_fetched fetched;
  CHECK_INVALID(aquifer_request_fetched(engine->request, 0, &fetched, 1));
  aquifer_counts counts = {.size = sizeof(counts)};
  CHECK_INVALID(aquifer_request_counts(engine->request, &counts));
  /* If the cache itself refuses a request, the refusal is the answer. */
  match.chain = engine->chain;
  match.chain.layout = 4711;
  CHECK_OK(aquifer_match(engine->cache, engine->request, &match));
  CHECK_OK(aquifer_wait(engine->cache, engine->request, -1));
  CHECK(aquifer_request_status(engine->request) == AQUIFER_INVALID);
  CHECK(*aquifer_request_message(engine->request) != '\0');
  CHECK(strcmp(aquifer_code_name(AQUIFER_LATE), "late") == 0);
  CHECK(strcmp(aquifer_code_name(99), "unknown") == 0);
  CHECK(strcmp(aquifer_refusal_name(99), "unknown") == 0);
  CHECK(aquifer_abi_version() == 2 && *aquifer_version() != '\0');
}

/* ---- An engine's tensors ---- */

enum { LAYERS = 2, HEADS = 2, DIM = 64, SEQUENCE = BLOCKS * TOKENS, PLANES = 2 * LAYERS };

/* A sequence as transformers keeps it: K and V of each layer, [1, HEADS, SEQUENCE, DIM]. */
typedef struct Tensors {
  aquifer_kv_group group;
  aquifer_layout layout;
  uint16_t memory[PLANES][HEADS * SEQUENCE * DIM];
  uint64_t shape[4];
  uint64_t strides[4];
  aquifer_tensor keys[LAYERS];
  aquifer_tensor values[LAYERS];
  aquifer_tensors all;
} Tensors;

static aquifer_tensor Describe(Tensors* tensors, uint16_t* memory) {
  const aquifer_tensor tensor = {.data = memory,
                                 .bytes = sizeof(tensors->memory[0]),
                                 .shape = tensors->shape,
                                 .strides = tensors->strides,
                                 .dimension_count = 4,
                                 .element_bytes = 2};
  return tensor;
}

static void FillTensors(Tensors* tensors) {
  for (int plane = 0; plane < PLANES; ++plane) {
    for (int i = 0; i < HEADS * SEQUENCE * DIM; ++i) {
      tensors->memory[plane][i] = (uint16_t)(plane * 7919 + i);
    }
  }
}

static void MakeTensors(Tensors* tensors) {
  memset(tensors, 0, sizeof(*tensors));
  const uint64_t shape[4] = {1, HEADS, SEQUENCE, DIM};
  const uint64_t strides[4] = {HEADS * SEQUENCE * DIM, SEQUENCE * DIM, DIM, 1};
  memcpy(tensors->shape, shape, sizeof(shape));
  memcpy(tensors->strides, strides, sizeof(strides));
  const aquifer_kv_group group = {.kind = AQUIFER_KV_FULL,
                                  .dtype = AQUIFER_BFLOAT16,
                                  .layers = LAYERS,
                                  .kv_heads = HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM};
  tensors->group = group;
  tensors->layout.size = sizeof(tensors->layout);
  tensors->layout.tokens_per_block = TOKENS;
  tensors->layout.kv_format = "tensors";
  tensors->layout.groups = &tensors->group;
  tensors->layout.group_count = 1;
  for (int layer = 0; layer < LAYERS; ++layer) {
    tensors->keys[layer] = Describe(tensors, tensors->memory[2 * layer]);
    tensors->values[layer] = Describe(tensors, tensors->memory[2 * layer + 1]);
  }
  tensors->all.size = sizeof(tensors->all);
  tensors->all.family = AQUIFER_TENSORS_SEQUENCES;
  tensors->all.layout = &tensors->layout;
  tensors->all.tensors = tensors->keys;
  tensors->all.values = tensors->values;
  tensors->all.tensor_count = tensors->all.value_count = LAYERS;
  FillTensors(tensors);
}

static void DescribesTensors(Tensors* tensors) {
  aquifer_tensor_map* map = NULL;
  CHECK_OK(aquifer_map_tensors(&tensors->all, &map));
  aquifer_tensor_facts facts = {.size = sizeof(facts)};
  CHECK_OK(aquifer_tensor_map_facts(map, &facts));
  CHECK(facts.tokens_per_block == TOKENS && facts.blocks_per_page == BLOCKS &&
        facts.pages_per_block == 1 && facts.page_count == 1);
  CHECK(facts.block_bytes == sizeof(tensors->memory) / BLOCKS);
  aquifer_tensor_map_free(map);
  aquifer_tensor_map_free(NULL);

  /* The mistake is named, and no map is made. */
  aquifer_tensors wrong = tensors->all;
  wrong.family = 10;
  CHECK_INVALID(aquifer_map_tensors(&wrong, &map));
  CHECK(map == NULL && strstr(aquifer_error(), "family") != NULL);
  wrong = tensors->all;
  wrong.value_count = 1;
  CHECK_INVALID(aquifer_map_tensors(&wrong, &map));
  wrong = tensors->all;
  wrong.head_end = 1; /* The tensors have two heads. */
  CHECK_INVALID(aquifer_map_tensors(&wrong, &map));
  tensors->keys[1].bytes -= 2;
  CHECK_INVALID(aquifer_map_tensors(&tensors->all, &map));
  CHECK(strstr(aquifer_error(), "layer 1's K") != NULL);
  tensors->keys[1].bytes += 2;
  CHECK_INVALID(aquifer_map_tensors(NULL, &map));
  CHECK_INVALID(aquifer_map_tensors(&tensors->all, NULL));
  CHECK_INVALID(aquifer_tensor_map_facts(NULL, &facts));

  uint32_t begin = 9, end = 9;
  int32_t writes = 9;
  CHECK_OK(aquifer_heads_of_rank(8, 4, 1, &begin, &end, &writes));
  CHECK(begin == 2 && end == 4 && writes == 1);
  CHECK_OK(aquifer_heads_of_rank(1, 2, 1, &begin, &end, &writes));
  CHECK(begin == 0 && end == 1 && writes == 0);
  CHECK_INVALID(aquifer_heads_of_rank(8, 3, 0, &begin, &end, &writes));
}

static void CopiesTensors(Tensors* tensors, const aquifer_tensor_map* map) {
  enum { BYTES = sizeof(tensors->memory) / BLOCKS };
  uint8_t* slots = malloc(BLOCKS * BYTES);
  const uint32_t page = 0;
  aquifer_copy_op ops[BLOCKS] = {{0}};
  for (int i = 0; i < BLOCKS; ++i) {
    ops[i].pages = &page;
    ops[i].page_count = 1;
    ops[i].block = i;
    ops[i].slot = slots + i * BYTES;
    ops[i].slot_bytes = BYTES;
  }
  CHECK_OK(aquifer_gather(map, ops, BLOCKS));
  for (int i = 0; i < BLOCKS; ++i) {
    CHECK(ops[i].code == AQUIFER_OK);
    CHECK_OK(aquifer_finish_checksum(&ops[i].sums, BYTES, &ops[i].checksum));
  }
  slots[2 * BYTES + 5] ^= 1;
  memset(tensors->memory, 0, sizeof(tensors->memory));
  CHECK_OK(aquifer_scatter(map, AQUIFER_VERIFY_FIRST, ops, BLOCKS));
  CHECK(ops[1].code == AQUIFER_OK && ops[2].code == AQUIFER_CORRUPT && ops[3].code == AQUIFER_OK);
  for (int i = 0; i < DIM; ++i) CHECK(tensors->memory[0][2 * TOKENS * DIM + i] == 0);
  slots[2 * BYTES + 5] ^= 1;
  CHECK_OK(aquifer_scatter(map, AQUIFER_VERIFY_COPYING, ops, BLOCKS));
  Tensors* expected = malloc(sizeof(*expected));
  FillTensors(expected);
  CHECK(memcmp(expected->memory, tensors->memory, sizeof(tensors->memory)) == 0);
  free(expected);

  ops[0].block = BLOCKS;
  CHECK_OK(aquifer_gather(map, ops, 1));
  CHECK(ops[0].code == AQUIFER_INVALID);
  CHECK_INVALID(aquifer_gather(NULL, ops, 1));
  CHECK_INVALID(aquifer_scatter(map, 3, ops, 1));
  CHECK_INVALID(aquifer_scatter(map, 0, NULL, 1));
  free(slots);
}

static aquifer_loaded Load(Engine* engine, const aquifer_tensor_map* map) {
  const uint32_t page = 0;
  aquifer_load_args args = {.size = sizeof(args), .chain = engine->chain, .map = map};
  args.pages = &page;
  args.page_count = 1;
  args.timeout_nanos = 30000000000;
  aquifer_loaded loaded = {.size = sizeof(loaded)};
  CHECK_OK(aquifer_load(engine->cache, &args, &loaded));
  return loaded;
}

static aquifer_stored StoreFrom(Engine* engine, const aquifer_tensor_map* map) {
  const uint32_t page = 0;
  const uint64_t names[BLOCKS] = {1, 2, 3, 4};
  aquifer_store_args args = {.size = sizeof(args), .chain = engine->chain, .map = map};
  args.parent = engine->root;
  args.engine_hashes = names;
  args.pages = &page;
  args.page_count = 1;
  args.timeout_nanos = 30000000000;
  aquifer_stored stored = {.size = sizeof(stored)};
  CHECK_OK(aquifer_store(engine->cache, &args, &stored));
  return stored;
}

/* Changes one byte of block 2 in its place. */
static void Damage(Engine* engine) {
  aquifer_fetch_args args = {.size = sizeof(args), .chain = engine->chain};
  CHECK_OK(aquifer_fetch(engine->cache, engine->request, &args));
  Finish(engine);
  aquifer_fetched blocks[BLOCKS];
  CHECK_OK(aquifer_request_fetched(engine->request, 0, blocks, BLOCKS));
  for (int i = 0; i < BLOCKS; ++i) {
    CHECK(blocks[i].code == AQUIFER_OK);
    if (i == 2) ((uint8_t*)(uintptr_t)blocks[i].data)[77] ^= 4;
    const aquifer_release_op release = {.lease = blocks[i].lease};
    CHECK_OK(aquifer_release(engine->cache, &release, 1));
  }
}

static void MovesTensors(Engine* from, int alone) {
  Tensors* tensors = malloc(sizeof(*tensors));
  MakeTensors(tensors);
  DescribesTensors(tensors);
  aquifer_tensor_map* map = NULL;
  CHECK_OK(aquifer_map_tensors(&tensors->all, &map));
  CopiesTensors(tensors, map);

  Engine engine = *from;
  engine.layout = tensors->layout;
  Begin(&engine, 5000);
  CHECK(Load(&engine, map).code == AQUIFER_NOT_FOUND);
  aquifer_stored stored = StoreFrom(&engine, map);
  CHECK(stored.stored == BLOCKS && stored.published == BLOCKS && stored.had == 0);
  CHECK(stored.bytes == sizeof(tensors->memory));
  stored = StoreFrom(&engine, map);
  CHECK(stored.stored == 0 && stored.had == BLOCKS);

  Tensors* expected = malloc(sizeof(*expected));
  FillTensors(expected);
  memset(tensors->memory, 0, sizeof(tensors->memory));
  aquifer_loaded loaded = Load(&engine, map);
  CHECK(loaded.code == AQUIFER_OK && loaded.blocks == BLOCKS);
  CHECK(loaded.bytes == sizeof(tensors->memory));
  CHECK(loaded.tier_blocks[AQUIFER_DRAM] == BLOCKS);
  CHECK(memcmp(expected->memory, tensors->memory, sizeof(tensors->memory)) == 0);
  CHECK(Counter(&engine, "lent_slots") == 0);

  if (alone) { /* The cache's memory is this process's. */
    Damage(&engine);
    loaded = Load(&engine, map);
    CHECK(loaded.code == AQUIFER_CORRUPT && loaded.blocks == 2);
    loaded = Load(&engine, map);
    CHECK(loaded.code == AQUIFER_NOT_FOUND && loaded.blocks == 2);
    CHECK(StoreFrom(&engine, map).stored == 1);
    memset(tensors->memory, 0, sizeof(tensors->memory));
    CHECK(Load(&engine, map).blocks == BLOCKS);
    CHECK(Counter(&engine, "lent_slots") == 0);
  }

  /* Page numbers that the engine does not have cause no crash. */
  const uint32_t nowhere = 7;
  aquifer_load_args load = {.size = sizeof(load), .chain = engine.chain, .map = map};
  load.pages = &nowhere;
  load.page_count = 1;
  CHECK_OK(aquifer_load(engine.cache, &load, &loaded));
  CHECK(loaded.code == AQUIFER_INVALID && loaded.blocks == 0);
  load.map = NULL;
  CHECK_INVALID(aquifer_load(engine.cache, &load, &loaded));
  CHECK_INVALID(aquifer_load(NULL, &load, &loaded));
  CHECK_INVALID(aquifer_load(engine.cache, NULL, &loaded));
  CHECK_INVALID(aquifer_store(engine.cache, NULL, &stored));
  aquifer_evict_args evict = {.size = sizeof(evict), .chain = engine.chain};
  CHECK_OK(aquifer_evict(engine.cache, engine.request, &evict));
  CHECK(Counts(&engine).evicted == BLOCKS);
  aquifer_tensor_map_free(map);
  free(expected);
  free(tensors);
}

/* Drains a cache that no other test uses. */
static void Drains(Engine* engine) {
  CHECK_OK(aquifer_drain(engine->cache, engine->request, 0));
  CHECK_OK(aquifer_wait(engine->cache, engine->request, -1));
  aquifer_counts counts = {.size = sizeof(counts)};
  CHECK_OK(aquifer_request_counts(engine->request, &counts));
  CHECK(counts.left == BLOCKS); /* There is no lower tier. */
  Begin(engine, 1000);
  aquifer_reserved slots[BLOCKS];
  aquifer_reserve_args args = {.size = sizeof(args), .chain = engine->chain};
  args.parent = engine->root;
  CHECK_OK(aquifer_reserve(engine->cache, engine->request, &args));
  Finish(engine);
  CHECK_OK(aquifer_request_reserved(engine->request, 0, slots, BLOCKS));
  CHECK(slots[0].outcome == AQUIFER_REFUSED && slots[0].refusal == AQUIFER_REFUSAL_DRAINING);
}

static void LookAtAll(Engine* engine, uint32_t first_token, int alone) {
  engine->request = aquifer_request_new();
  Begin(engine, first_token);
  MovesTensors(engine, alone);
  StoresAndRecalls(engine);
  TakesCare(engine);
  AbortsAndCancels(engine);
  PollsWithItsDescriptor(engine);
  ForgetsRequests(engine);
  ClosesWithARequestOpen(engine);
  RefusesNull(engine);
  RefusesWrongSizes(engine);
  RefusesNonsense(engine);
}

static void Leave(Engine* engine) {
  aquifer_request_free(engine->request);
  aquifer_close(engine->cache);
}

int main(int argc, char** argv) {
  Engine engine;
  DescribeLayout(&engine);
  DerivesInBulk();
  KnowsLayouts(&engine);

  aquifer_cache* none = NULL;
  aquifer_connect_options connect = {.size = sizeof(connect), .socket = "/nowhere/node.sock"};
  CHECK(aquifer_connect(&connect, &none) == AQUIFER_UNAVAILABLE && none == NULL);
  CHECK(strstr(aquifer_error(), "/nowhere/node.sock") != NULL);
  if (argc > 1) {
    connect.socket = argv[1];
    CHECK_OK(aquifer_connect(&connect, &engine.cache));
    LookAtAll(&engine, 1, 0);
    Leave(&engine);
  }

  DescribeLayout(&engine);
  const aquifer_tenant_options tenant = {.name = "local", .dram_ceiling_bytes = 64 << 20};
  aquifer_open_options open = {.size = sizeof(open), .dram_bytes = 128 << 20};
  open.tenants = &tenant;
  open.tenant_count = 1;
  CHECK_OK(aquifer_open(&open, &engine.cache));
  LookAtAll(&engine, 1, 1);
  Drains(&engine);
  Leave(&engine);
  return 0;
}
