// The fleet that a plan is made for: its GPUs, the model that they serve, what each tier holds, how
// fast it is, what it costs and what it draws. A TOML file (etc/fleet.toml documents every key) on
// top of presets; whatever is not told is an assumption, and the report lists it as one.
//
// Sizes are of one node, speeds are what one request gets when nobody else asks. Plain numbers: no
// clock, no threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "policy/cost/prefill_model.h"

namespace aquifer {

struct GpuKind {
  std::string name;
  double tflops = 0;      // Dense, in the precision that the model runs in.
  double efficiency = 0;  // The part of them that prefill reaches.
  double memory_bytes = 0;
  double host_link_bytes_per_second = 0;
  double watts = 0;
  double idle_watts = 0;
  double dollars_per_hour = 0;
};

struct ModelShape {
  std::string name;
  double parameters = 0;  // Those that a token goes through.
  double weight_bytes = 0;
  double kv_bytes_per_token = 0;
  double attention_flops_per_pair = 0;  // Of one query with one key, over all layers.
  // The latter two follow from these; 0: from something else.
  double layers = 0;
  double heads = 0;
  double kv_heads = 0;
  double head_dim = 0;

  // From the shape, with so many bytes in a value of K or V.
  void Derive(double bytes_per_value) {
    // Two matrix products of two operations each, for every layer and head.
    attention_flops_per_pair = 4 * layers * heads * head_dim;
    kv_bytes_per_token = 2 * bytes_per_value * layers * kv_heads * head_dim;
  }
};

std::span<const GpuKind> GpuPresets();
std::span<const ModelShape> ModelPresets();

// How requests find a node. kSticky: where their blocks are, unless that node has too much to do
// (what the gateway does); kRandom: anywhere.
enum class Routing : uint8_t { kSticky, kRandom };

struct DramPlan {
  uint64_t bytes = 0;
  double bytes_per_second = 0;  // 0: the GPU's host link.
  double latency_ms = 0.05;
  double dollars_per_gib = 8;
  double watts_per_gib = 0.35;
};

struct NvmePlan {
  uint64_t bytes = 0;
  double bytes_per_second = 20e9;
  double write_bytes_per_second = 8e9;
  double latency_ms = 0.2;
  double dollars_per_tb = 120;
  double watts_per_tb = 2.5;
  double drive_writes_per_day = 1;  // The drives are rated for so many.
};

struct PeersPlan {
  bool enabled = false;
  double bytes_per_second = 11e9;  // 100 Gbit/s less headers.
  double latency_ms = 0.3;
  double dollars_per_node = 1000;
  double watts_per_node = 20;
};

struct DurablePlan {
  bool enabled = false;
  uint64_t bytes = 0;  // Of the whole fleet; 0: no limit.
  double bytes_per_second = 2e9;
  double latency_ms = 30;
  double dollars_per_gib_month = 0.023;
  double dollars_per_million_reads = 0.4;
  double dollars_per_million_writes = 5;
};

struct Fleet {
  uint32_t nodes = 1;
  Routing routing = Routing::kSticky;
  uint32_t gpus_per_node = 8;
  uint32_t gpus_per_engine = 1;
  bool gpus_per_engine_told = false;  // False: as few as hold the model's weights.
  double dollars_per_kwh = 0.12;
  double months = 48;  // Over which what is bought is paid off.
  GpuKind gpu{};
  ModelShape model{};
  PrefillCoefficients prefill{};  // Of one engine.
  bool prefill_told = false;      // False: it follows from GPU and model.
  double engine_cache_bytes = 0;  // GPU memory of one engine that keeps prefixes by itself.
  bool engine_cache_told = false;
  DramPlan dram{.bytes = uint64_t{1} << 40};
  NvmePlan nvme{.bytes = uint64_t{15'000'000'000'000}};
  PeersPlan peers{};
  DurablePlan durable{};

  uint32_t engines_per_node() const { return gpus_per_node / gpus_per_engine; }
  // Of the node's engines together.
  double engine_cache_per_node() const { return engine_cache_bytes * engines_per_node(); }
  double gpu_dollars_per_second() const { return gpu.dollars_per_hour / 3600; }
};

// Values of the command line, which replace the file's; empty: none.
struct FleetChoices {
  std::string file{};
  std::string gpu{};
  std::string model{};
  std::string nodes{};
  std::string dram{};
  std::string nvme{};
};

// An H200 node with Llama 3 8B, then the file, then the command line. kInvalid: file, line, reason
// and what to write instead, or the option.
Result<Fleet> LoadFleet(const FleetChoices& choices);
// The same of a text; `file` is for messages.
Result<Fleet> ParseFleet(std::string_view text, const std::string& file,
                         const FleetChoices& choices = {});

// Every key that the file may have ("dram.size").
std::vector<std::string> FleetKeys();

}  // namespace aquifer
