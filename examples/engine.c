/* An engine's use of Aquifer, in C. It connects to the host's node, looks for a prompt's blocks,
 * stores those that are missing, and reads all of them back. usage: engine [SOCKET] */
#include <aquifer/aquifer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4 };
static aquifer_cache* cache;
static aquifer_request* request; /* One request is enough: the program waits for each call. */

static void Do(aquifer_code code) {
  if (code == AQUIFER_OK) return;
  fprintf(stderr, "%s: %s\n", aquifer_code_name(code), aquifer_error());
  exit(1);
}
static void Wait(aquifer_code begun) {
  Do(begun);
  Do(aquifer_wait(cache, request, -1));
  Do(aquifer_request_status(request));
}

int main(int argc, char** argv) {
  const char* socket = argc > 1 ? argv[1] : NULL; /* Null: the usual socket of a node. */
  aquifer_connect_options options = {.size = sizeof(options), .socket = socket};
  Do(aquifer_connect(&options, &cache));
  request = aquifer_request_new();

  aquifer_kv_group group = {.kind = AQUIFER_KV_FULL, .dtype = AQUIFER_BFLOAT16}; /* Llama-3-8B. */
  group.layers = 32, group.kv_heads = 8, group.key_dim = group.value_dim = 128;
  aquifer_layout layout = {.size = sizeof(layout), .kv_format = "example", .group_count = 1};
  layout.groups = &group;
  Do(aquifer_tokens_per_block(&layout, &layout.tokens_per_block));
  Wait(aquifer_register_layout(cache, request, &layout));
  aquifer_key parent, keys[BLOCKS];
  aquifer_chain chain = {.keys = keys};
  Do(aquifer_request_layout(request, &chain.layout));

  aquifer_chain_root root = {.size = sizeof(root), .tenant = "local"};
  Do(aquifer_layout_fingerprint(&layout, root.layout_fingerprint));
  Do(aquifer_derive_root(&root, &parent));
  const uint32_t tokens[BLOCKS * 256] = {42}; /* A block has at most 256 tokens. */
  Do(aquifer_derive_chain(&parent, tokens, BLOCKS * (size_t)layout.tokens_per_block,
                          layout.tokens_per_block, keys, BLOCKS, &chain.key_count));

  aquifer_match_args match = {.size = sizeof(match), .chain = chain};
  aquifer_matched matched = {.size = sizeof(matched)};
  Wait(aquifer_match(cache, request, &match));
  Do(aquifer_request_matched(request, &matched));
  printf("%d of %d blocks are there\n", (int)matched.matched, BLOCKS);
  aquifer_reserve_args reserve = {.size = sizeof(reserve), .chain = chain, .parent = parent};
  aquifer_reserved slots[BLOCKS];
  Wait(aquifer_reserve(cache, request, &reserve));
  Do(aquifer_request_reserved(request, 0, slots, BLOCKS));
  aquifer_commit_op writes[BLOCKS] = {{0}};
  size_t write_count = 0;
  for (int i = 0; i < BLOCKS; ++i) {
    if (slots[i].outcome != AQUIFER_SLOT) continue; /* The block is there, or is not to be kept. */
    memset(slots[i].slot, i, slots[i].slot_bytes);  /* The engine's KV goes here. */
    writes[write_count].reservation = slots[i].reservation;
    Do(aquifer_sum_lanes(slots[i].slot, slots[i].slot_bytes, 0, &writes[write_count++].sums));
  }
  Wait(aquifer_commit(cache, request, writes, write_count));
  aquifer_fetch_args fetch = {.size = sizeof(fetch), .chain = chain};
  aquifer_fetched blocks[BLOCKS];
  Wait(aquifer_fetch(cache, request, &fetch));
  Do(aquifer_request_fetched(request, 0, blocks, BLOCKS));
  int right = 0;
  for (int i = 0; i < BLOCKS; ++i) {
    const aquifer_release_op release = {.lease = blocks[i].lease};
    right += blocks[i].code == AQUIFER_OK && blocks[i].data[0] == i &&
             memcmp(blocks[i].data, blocks[i].data + 1, blocks[i].data_bytes - 1) == 0;
    Do(aquifer_release(cache, &release, 1));
  }
  printf("%d of %d blocks are what was written\n", right, BLOCKS);
  aquifer_close(cache);
  aquifer_request_free(request);
  return right == BLOCKS ? 0 : 1;
}
