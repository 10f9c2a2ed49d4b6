#include "bench/gpu_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/peers/bench_memory.h"
#include "cuda/cuda_device.h"
#include "cuda/host_pins.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kLayers = 32;
constexpr uint64_t kLinkBytes = 4096 * kMiB;  // Measures the link.

Status StatusOf(aquifer_code code) {
  return code == AQUIFER_OK ? Status() : Status(static_cast<Code>(code), aquifer_error());
}

}  // namespace

Result<std::unique_ptr<GpuEngine>> GpuEngine::New(const GpuEngineOptions& options) {
  std::unique_ptr<GpuEngine> engine(new GpuEngine(options));
  // In this order, as in real engines: when one is killed, its newest files are closed first, and
  // the driver takes its time with the rest while the connection is gone already.
  AQ_RETURN_IF_ERROR(engine->MakeTensors());
  AQ_RETURN_IF_ERROR(engine->Connect());
  AQ_RETURN_IF_ERROR(engine->MakeChain());
  return engine;
}

GpuEngine::~GpuEngine() {
  if (map_ != nullptr) aquifer_tensor_map_free(map_);
  if (cache_ != nullptr) aquifer_close(cache_);
  if (request_ != nullptr) aquifer_request_free(request_);
}

Status GpuEngine::Wait(aquifer_code begun) {
  AQ_RETURN_IF_ERROR(StatusOf(begun));
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_wait(cache_, request_, -1)));
  const aquifer_code code = aquifer_request_status(request_);
  if (code == AQUIFER_OK) return Status();
  return Status(static_cast<Code>(code), aquifer_request_message(request_));
}

Status GpuEngine::Connect() {
  aquifer_connect_options options{};
  options.size = sizeof(options);
  options.socket = options_.socket.c_str();
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_connect(&options, &cache_)));
  request_ = aquifer_request_new();
  return Status();
}

Status GpuEngine::MakeTensors() {
  AQ_ASSIGN_OR_RETURN(device_, NewCudaDevice(0));
  AQ_ASSIGN_OR_RETURN(queue_, device_->NewQueue());
  AQ_ASSIGN_OR_RETURN(pinned_, device_->NewPinnedMemory(std::min(bytes(), kLinkBytes)));
  AQ_ASSIGN_OR_RETURN(memory_, device_->NewDeviceMemory(bytes()));
  AQ_RETURN_IF_ERROR(Fill(1));
  return MapTensors();
}

// ---- What is in the tensors ----

// `at` is a multiple of the pinned memory's length, which divides all.
Status GpuEngine::CopyPart(uint64_t at, bool to_device) {
  const auto host = reinterpret_cast<uint64_t>(pinned_.data());
  const GpuCopy copy{.to = to_device ? memory_ + at : host,
                     .from = to_device ? host : memory_ + at,
                     .bytes = pinned_.size()};
  AQ_RETURN_IF_ERROR(device_->Copy(queue_, std::span(&copy, 1)));
  device_->Drain();
  return Status();
}

Status GpuEngine::Fill(uint64_t seed) {
  for (uint64_t at = 0; at < bytes(); at += pinned_.size()) {
    FillFromSeed(pinned_, seed + at);
    AQ_RETURN_IF_ERROR(CopyPart(at, /*to_device=*/true));
  }
  return Status();
}

Status GpuEngine::Clear() {
  std::memset(pinned_.data(), 0, pinned_.size());
  for (uint64_t at = 0; at < bytes(); at += pinned_.size()) {
    AQ_RETURN_IF_ERROR(CopyPart(at, /*to_device=*/true));
  }
  return Status();
}

Result<bool> GpuEngine::Holds(uint64_t seed) {
  std::vector<std::byte> expected(pinned_.size());
  for (uint64_t at = 0; at < bytes(); at += pinned_.size()) {
    FillFromSeed(expected, seed + at);
    AQ_RETURN_IF_ERROR(CopyPart(at, /*to_device=*/false));
    if (std::memcmp(expected.data(), pinned_.data(), expected.size()) != 0) return false;
  }
  return true;
}

Result<double> GpuEngine::Link(bool load) {
  const Stopwatch watch;
  AQ_RETURN_IF_ERROR(CopyPart(0, load));
  return GigabytesPerSecond(pinned_.size(), watch.Seconds());
}

// ---- What the node knows ----

// A tensor a layer, [2, pages, tokens, heads, elements], as vLLM's FlashAttention has them.
Status GpuEngine::MapTensors() {
  group_ = {};
  group_.kind = AQUIFER_KV_FULL;
  group_.dtype = AQUIFER_BFLOAT16;
  group_.layers = kLayers;
  group_.kv_heads = 8;
  group_.key_dim = group_.value_dim = 128;
  layout_.size = sizeof(layout_);
  layout_.kv_format = "bench";
  layout_.groups = &group_;
  layout_.group_count = 1;
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_tokens_per_block(&layout_, &layout_.tokens_per_block)));
  const uint64_t page_count = options_.tokens / kPageTokens;
  const uint64_t shape[] = {2, page_count, kPageTokens, 8, 128};
  const uint64_t strides[] = {page_count * kPageTokens * 1024, kPageTokens * 1024, 1024, 128, 1};
  std::vector<aquifer_tensor> tensors(kLayers);
  const uint64_t layer_bytes = bytes() / kLayers;
  for (uint32_t i = 0; i < kLayers; ++i) {
    tensors[i] = {.data = reinterpret_cast<void*>(memory_ + i * layer_bytes),
                  .bytes = layer_bytes,
                  .shape = shape,
                  .strides = strides,
                  .dimension_count = 5,
                  .element_bytes = 2};
  }
  aquifer_tensors given{};
  given.size = sizeof(given);
  given.family = AQUIFER_TENSORS_KV_FIRST;
  given.layout = &layout_;
  given.tensors = tensors.data();
  given.tensor_count = tensors.size();
  return StatusOf(aquifer_map_tensors(&given, &map_));
}

Status GpuEngine::MakeChain() {
  AQ_RETURN_IF_ERROR(Wait(aquifer_register_layout(cache_, request_, &layout_)));
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_request_layout(request_, &chain_.layout)));
  aquifer_chain_root root{};
  root.size = sizeof(root);
  root.tenant = "local";
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_layout_fingerprint(&layout_, root.layout_fingerprint)));
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_derive_root(&root, &root_)));
  const std::vector<uint32_t> tokens(options_.tokens, options_.token);
  keys_.resize(options_.tokens / layout_.tokens_per_block);
  AQ_RETURN_IF_ERROR(
      StatusOf(aquifer_derive_chain(&root_, tokens.data(), tokens.size(), layout_.tokens_per_block,
                                    keys_.data(), keys_.size(), &chain_.key_count)));
  chain_.keys = keys_.data();
  const uint64_t page_count = options_.tokens / kPageTokens;
  for (uint64_t i = 0; i < page_count; ++i) {
    pages_.push_back(static_cast<uint32_t>(i * 307 % page_count));  // All over; each once.
  }
  return Status();
}

// The client maps extents as it gets slots in them; from then on they are being pinned.
Result<double> GpuEngine::AwaitPinsSeconds() {
  constexpr double kPatienceSeconds = 120;
  const Stopwatch watch;
  while (HostPins::OfProcess()->counts().waiting > 0) {
    if (watch.Seconds() > kPatienceSeconds) {
      return Status(Code::kLate, "extents are not pinned in two minutes");
    }
  }
  AQ_RETURN_IF_ERROR(HostPins::OfProcess()->failure());
  return watch.Seconds();
}

Status GpuEngine::Evict() {
  aquifer_evict_args args{};
  args.size = sizeof(args);
  args.chain = chain_;
  return Wait(aquifer_evict(cache_, request_, &args));
}

// Of the whole chain.
template <class Args>
Args GpuEngine::Transfer() const {
  Args args{};
  args.size = sizeof(args);
  args.chain = chain_;
  args.map = map_;
  args.pages = pages_.data();
  args.page_count = pages_.size();
  args.timeout_nanos = 120'000'000'000;
  return args;
}

Status GpuEngine::Store() {
  auto args = Transfer<aquifer_store_args>();
  args.parent = root_;
  aquifer_stored stored{};
  stored.size = sizeof(stored);
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_store(cache_, &args, &stored)));
  if (stored.published == keys_.size()) return Status();
  return Status(Code::kInvalid, fmt::format("{} of {} blocks were stored: {}", stored.published,
                                            keys_.size(), aquifer_error()));
}

Status GpuEngine::Load() {
  aquifer_match_args match{};
  match.size = sizeof(match);
  match.chain = chain_;
  AQ_RETURN_IF_ERROR(Wait(aquifer_match(cache_, request_, &match)));
  aquifer_matched matched{};
  matched.size = sizeof(matched);
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_request_matched(request_, &matched)));
  if (matched.matched != keys_.size()) return Status(Code::kInvalid, "not all blocks are there");
  auto args = Transfer<aquifer_load_args>();
  args.verify = AQUIFER_VERIFY_COPYING;
  aquifer_loaded loaded{};
  loaded.size = sizeof(loaded);
  AQ_RETURN_IF_ERROR(StatusOf(aquifer_load(cache_, &args, &loaded)));
  if (loaded.blocks == keys_.size()) return Status();
  return Status(Code::kInvalid, fmt::format("{} of {} blocks were loaded: {}", loaded.blocks,
                                            keys_.size(), aquifer_error()));
}

}  // namespace aquifer
