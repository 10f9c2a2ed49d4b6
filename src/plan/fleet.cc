#include "plan/fleet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/text/nearest_name.h"
#include "base/text/size_text.h"
#include "base/text/toml_value.h"

namespace aquifer {
namespace {

constexpr int64_t kMaxNodes = 10'000;
constexpr uint64_t kMaxTierBytes = uint64_t{1} << 50;  // 1 PiB in a node.
// A smaller number without a unit is a forgotten unit: no tier is so small.
constexpr uint64_t kLeastBareBytes = uint64_t{1} << 30;
constexpr double kMaxBytesPerSecond = 10e12;
// Running requests and finished ones share the GPU memory beside weights and workspace; no trace
// says how.
constexpr double kUsableMemory = 0.9;
constexpr double kCachedPart = 0.5;

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// The model's shape as far as a file tells it; it may not be enough.
struct ToldShape {
  std::optional<double> layers, heads, kv_heads, head_dim, bytes_per_value;
  std::optional<double> billions, weight_billion_bytes, kv_bytes_per_token;
  bool any() const {
    return layers || heads || kv_heads || head_dim || bytes_per_value || billions ||
           weight_billion_bytes || kv_bytes_per_token;
  }
};

struct Reading {
  Fleet fleet;
  ToldShape shape;
  std::optional<double> tokens_per_second;
  bool coefficients = false;
};

template <class Preset>
Result<Preset> FindPreset(std::span<const Preset> presets, std::string_view name,
                          std::string_view what) {
  std::vector<std::string> names;
  for (const Preset& preset : presets) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  const std::string meant = NearestName(name, names);
  return Invalid(fmt::format("there is no {} preset '{}'{}; there are: {}", what, name,
                             meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant),
                             fmt::join(names, ", ")));
}

// ---- Values ----

Status ReadNumber(const TomlValue& value, double least, double most, double* number) {
  AQ_ASSIGN_OR_RETURN(*number, value.Number(least, most));
  return Status();
}

Status ReadNumber(const TomlValue& value, double least, double most,
                  std::optional<double>* number) {
  AQ_ASSIGN_OR_RETURN(*number, value.Number(least, most));
  return Status();
}

Status ReadCount(const TomlValue& value, int64_t most, uint32_t* count) {
  AQ_ASSIGN_OR_RETURN(const int64_t number, value.Integer(1, most));
  *count = static_cast<uint32_t>(number);
  return Status();
}

// Returns the reason why `bytes`, written without a unit, cannot be meant; empty: it can be.
std::string WhyNoBareSize(uint64_t bytes) {
  if (bytes == 0 || bytes >= kLeastBareBytes) return "";
  return fmt::format(
      "{0} without a unit is {0} byte{1}, too little for a tier; write it with a "
      "unit, like {0}GiB, or 0 for no tier",
      bytes, bytes == 1 ? "" : "s");
}

// Returns true if the text of a size ends without a unit.
bool HasNoUnit(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.eE+- ") == std::string_view::npos;
}

Status ReadTierBytes(const TomlValue& value, uint64_t* bytes) {
  AQ_ASSIGN_OR_RETURN(*bytes, value.Bytes());
  bool no_unit = true;
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    no_unit = HasNoUnit(text);
  }
  const std::string why_not = no_unit ? WhyNoBareSize(*bytes) : "";
  if (!why_not.empty()) return value.Wrong(why_not);
  if (*bytes <= kMaxTierBytes) return Status();
  return value.Wrong(fmt::format("{} in one node is impossible; write at most {}", SizeText(*bytes),
                                 SizeText(kMaxTierBytes)));
}

// "25GB": bytes in a second.
Status ReadSpeed(const TomlValue& value, double* bytes_per_second) {
  AQ_ASSIGN_OR_RETURN(const uint64_t bytes, value.Bytes());
  *bytes_per_second = static_cast<double>(bytes);
  if (bytes >= 1'000'000 && *bytes_per_second <= kMaxBytesPerSecond) return Status();
  return value.Wrong(
      fmt::format("{} a second is no speed of such a device; write what it reads in a second, from "
                  "\"1MB\" to \"10TB\", like \"25GB\"",
                  SizeText(bytes)));
}

Status ReadEngineCache(const TomlValue& value, Fleet* fleet) {
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    if (text == "auto") return Status();
  }
  AQ_ASSIGN_OR_RETURN(const uint64_t bytes, value.Bytes());
  fleet->engine_cache_bytes = static_cast<double>(bytes);
  fleet->engine_cache_told = true;
  return Status();
}

Status ReadDurableBytes(const TomlValue& value, Fleet* fleet) {
  fleet->durable.bytes = 0;
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    if (text == "unlimited") return Status();
  }
  AQ_ASSIGN_OR_RETURN(fleet->durable.bytes, value.Bytes());
  if (fleet->durable.bytes > 0) return Status();
  return value.Wrong(
      "a store of no bytes holds nothing; write \"unlimited\", a size, or enabled = false");
}

// ---- The file ----

struct Setting {
  std::string_view section;
  std::string_view name;
  std::function<Status(const TomlValue&, Reading*)> read;
};

template <class Member>
auto Number(Member member, double least, double most) {
  return [=](const TomlValue& value, Reading* reading) {
    return ReadNumber(value, least, most, &member(*reading));
  };
}

template <class Member>
auto Speed(Member member) {
  return
      [=](const TomlValue& value, Reading* reading) { return ReadSpeed(value, &member(*reading)); };
}

std::vector<Setting> FleetSettings() {
  return {
      {"fleet", "nodes",
       [](const TomlValue& v, Reading* r) { return ReadCount(v, kMaxNodes, &r->fleet.nodes); }},
      {"fleet", "routing",
       [](const TomlValue& v, Reading* r) -> Status {
         constexpr std::string_view kNames[] = {"sticky", "random"};
         AQ_ASSIGN_OR_RETURN(const size_t index, v.OneOf(kNames));
         r->fleet.routing = index == 0 ? Routing::kSticky : Routing::kRandom;
         return Status();
       }},
      {"fleet", "gpus_per_node",
       [](const TomlValue& v, Reading* r) { return ReadCount(v, 64, &r->fleet.gpus_per_node); }},
      {"fleet", "gpus_per_engine",
       [](const TomlValue& v, Reading* r) {
         r->fleet.gpus_per_engine_told = true;
         return ReadCount(v, 64, &r->fleet.gpus_per_engine);
       }},
      {"fleet", "dollars_per_kwh",
       Number([](Reading& r) -> auto& { return r.fleet.dollars_per_kwh; }, 0, 10)},
      {"fleet", "months", Number([](Reading& r) -> auto& { return r.fleet.months; }, 1, 240)},
      {"gpu", "preset", [](const TomlValue&, Reading*) { return Status(); }},  // Read before.
      {"gpu", "tflops", Number([](Reading& r) -> auto& { return r.fleet.gpu.tflops; }, 0.1, 1e5)},
      {"gpu", "efficiency",
       Number([](Reading& r) -> auto& { return r.fleet.gpu.efficiency; }, 0.01, 1)},
      {"gpu", "memory",
       [](const TomlValue& v, Reading* r) -> Status {
         AQ_ASSIGN_OR_RETURN(const uint64_t bytes, v.Bytes());
         r->fleet.gpu.memory_bytes = static_cast<double>(bytes);
         return Status();
       }},
      {"gpu", "host_link",
       Speed([](Reading& r) -> auto& { return r.fleet.gpu.host_link_bytes_per_second; })},
      {"gpu", "watts", Number([](Reading& r) -> auto& { return r.fleet.gpu.watts; }, 0, 1e4)},
      {"gpu", "idle_watts",
       Number([](Reading& r) -> auto& { return r.fleet.gpu.idle_watts; }, 0, 1e4)},
      {"gpu", "dollars_per_hour",
       Number([](Reading& r) -> auto& { return r.fleet.gpu.dollars_per_hour; }, 0, 1e4)},
      {"gpu", "engine_cache",
       [](const TomlValue& v, Reading* r) { return ReadEngineCache(v, &r->fleet); }},
      {"model", "preset", [](const TomlValue&, Reading*) { return Status(); }},
      {"model", "parameters_billions",
       Number([](Reading& r) -> auto& { return r.shape.billions; }, 0.001, 1e5)},
      {"model", "weights_gb",
       Number([](Reading& r) -> auto& { return r.shape.weight_billion_bytes; }, 0.001, 1e5)},
      {"model", "layers", Number([](Reading& r) -> auto& { return r.shape.layers; }, 1, 1000)},
      {"model", "heads", Number([](Reading& r) -> auto& { return r.shape.heads; }, 1, 1024)},
      {"model", "kv_heads", Number([](Reading& r) -> auto& { return r.shape.kv_heads; }, 1, 1024)},
      {"model", "head_dim", Number([](Reading& r) -> auto& { return r.shape.head_dim; }, 1, 4096)},
      {"model", "bytes_per_value",
       Number([](Reading& r) -> auto& { return r.shape.bytes_per_value; }, 0.25, 8)},
      {"model", "kv_bytes_per_token",
       [](const TomlValue& v, Reading* r) -> Status {
         AQ_ASSIGN_OR_RETURN(const uint64_t bytes, v.Bytes());
         if (bytes == 0) return v.Wrong("0 is impossible; Llama 3 8B has \"128KiB\"");
         r->shape.kv_bytes_per_token = static_cast<double>(bytes);
         return Status();
       }},
      {"prefill", "tokens_per_second",
       Number([](Reading& r) -> auto& { return r.tokens_per_second; }, 1, 1e9)},
      {"prefill", "step_ms",
       [](const TomlValue& v, Reading* r) {
         r->coefficients = true;
         return ReadNumber(v, 0, 1e4, &r->fleet.prefill.step_ms);
       }},
      {"prefill", "ms_per_token",
       [](const TomlValue& v, Reading* r) {
         r->coefficients = true;
         return ReadNumber(v, 1e-6, 1e4, &r->fleet.prefill.ms_per_token);
       }},
      {"prefill", "ms_per_token_pair",
       [](const TomlValue& v, Reading* r) {
         r->coefficients = true;
         return ReadNumber(v, 0, 1, &r->fleet.prefill.ms_per_token_pair);
       }},
      {"dram", "size",
       [](const TomlValue& v, Reading* r) { return ReadTierBytes(v, &r->fleet.dram.bytes); }},
      {"dram", "speed", Speed([](Reading& r) -> auto& { return r.fleet.dram.bytes_per_second; })},
      {"dram", "latency_ms",
       Number([](Reading& r) -> auto& { return r.fleet.dram.latency_ms; }, 0, 1e4)},
      {"dram", "dollars_per_gib",
       Number([](Reading& r) -> auto& { return r.fleet.dram.dollars_per_gib; }, 0, 1e4)},
      {"dram", "watts_per_gib",
       Number([](Reading& r) -> auto& { return r.fleet.dram.watts_per_gib; }, 0, 100)},
      {"nvme", "size",
       [](const TomlValue& v, Reading* r) { return ReadTierBytes(v, &r->fleet.nvme.bytes); }},
      {"nvme", "speed", Speed([](Reading& r) -> auto& { return r.fleet.nvme.bytes_per_second; })},
      {"nvme", "write_speed",
       Speed([](Reading& r) -> auto& { return r.fleet.nvme.write_bytes_per_second; })},
      {"nvme", "latency_ms",
       Number([](Reading& r) -> auto& { return r.fleet.nvme.latency_ms; }, 0, 1e4)},
      {"nvme", "dollars_per_tb",
       Number([](Reading& r) -> auto& { return r.fleet.nvme.dollars_per_tb; }, 0, 1e5)},
      {"nvme", "watts_per_tb",
       Number([](Reading& r) -> auto& { return r.fleet.nvme.watts_per_tb; }, 0, 1000)},
      {"nvme", "drive_writes_per_day",
       Number([](Reading& r) -> auto& { return r.fleet.nvme.drive_writes_per_day; }, 0.01, 1000)},
      {"peers", "enabled",
       [](const TomlValue& v, Reading* r) -> Status {
         AQ_ASSIGN_OR_RETURN(r->fleet.peers.enabled, v.Flag());
         return Status();
       }},
      {"peers", "speed", Speed([](Reading& r) -> auto& { return r.fleet.peers.bytes_per_second; })},
      {"peers", "latency_ms",
       Number([](Reading& r) -> auto& { return r.fleet.peers.latency_ms; }, 0, 1e5)},
      {"peers", "dollars_per_node",
       Number([](Reading& r) -> auto& { return r.fleet.peers.dollars_per_node; }, 0, 1e6)},
      {"peers", "watts_per_node",
       Number([](Reading& r) -> auto& { return r.fleet.peers.watts_per_node; }, 0, 1e4)},
      {"durable", "enabled",
       [](const TomlValue& v, Reading* r) -> Status {
         AQ_ASSIGN_OR_RETURN(r->fleet.durable.enabled, v.Flag());
         return Status();
       }},
      {"durable", "size",
       [](const TomlValue& v, Reading* r) { return ReadDurableBytes(v, &r->fleet); }},
      {"durable", "speed",
       Speed([](Reading& r) -> auto& { return r.fleet.durable.bytes_per_second; })},
      {"durable", "latency_ms",
       Number([](Reading& r) -> auto& { return r.fleet.durable.latency_ms; }, 0, 1e5)},
      {"durable", "dollars_per_gib_month",
       Number([](Reading& r) -> auto& { return r.fleet.durable.dollars_per_gib_month; }, 0, 100)},
      {"durable", "dollars_per_million_reads",
       Number([](Reading& r) -> auto& { return r.fleet.durable.dollars_per_million_reads; }, 0,
              1e5)},
      {"durable", "dollars_per_million_writes",
       Number([](Reading& r) -> auto& { return r.fleet.durable.dollars_per_million_writes; }, 0,
              1e5)},
  };
}

// Null where the file does not have it.
const TomlValue* Find(const TomlValue& root, std::string_view section, std::string_view name) {
  for (const auto& [section_name, table] : root.table()) {
    if (section_name != section || !table.is_table()) continue;
    for (const auto& [key, value] : table.table()) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

// At the line that says so where the file has one, else at the file.
Status WrongAt(const TomlValue& root, std::string_view section, std::string_view name,
               std::string_view reason) {
  const TomlValue* const value = Find(root, section, name);
  if (value != nullptr) return value->Wrong(reason);
  return Invalid(fmt::format("{}: {}.{}: {}", root.where(), section, name, reason));
}

// Presets come first, whatever place they have in the file: the other keys change them. A preset of
// the command line replaces the file's.
Status ReadPresets(const TomlValue& root, const FleetChoices& choices, Reading* reading) {
  const auto choose = [&root](auto presets, std::string_view section, const std::string& chosen,
                              const char* fallback, auto* into) -> Status {
    if (!chosen.empty()) {
      auto found = FindPreset(presets, chosen, section);
      if (!found.ok()) return Invalid(fmt::format("--{}: {}", section, found.status().message()));
      *into = *std::move(found);
      return Status();
    }
    const TomlValue* const value = Find(root, section, "preset");
    std::string name = fallback;
    if (value != nullptr) {
      AQ_ASSIGN_OR_RETURN(name, value->Text());
    }
    auto found = FindPreset(presets, name, section);
    if (!found.ok()) return value->Wrong(found.status().message());
    *into = *std::move(found);
    return Status();
  };
  AQ_RETURN_IF_ERROR(choose(GpuPresets(), "gpu", choices.gpu, "h200", &reading->fleet.gpu));
  return choose(ModelPresets(), "model", choices.model, "llama-3-8b", &reading->fleet.model);
}

Status ReadSections(const TomlValue& root, Reading* reading) {
  const std::vector<Setting> settings = FleetSettings();
  std::vector<TomlKey> sections;
  for (const Setting& setting : settings) {
    const std::string section(setting.section);
    if (!sections.empty() && sections.back().name == section) continue;
    sections.push_back({section, [&settings, section, reading](const TomlValue& table) -> Status {
                          if (!table.is_table()) {
                            return table.Wrong(
                                fmt::format("write [{}] on a line of its own, and "
                                            "its keys below",
                                            section));
                          }
                          std::vector<TomlKey> keys;
                          for (const Setting& key : settings) {
                            if (key.section != section) continue;
                            keys.push_back(
                                {std::string(key.name), [&key, reading](const TomlValue& value) {
                                   return key.read(value, reading);
                                 }});
                          }
                          return ReadTable(table, keys);
                        }});
  }
  return ReadTable(root, sections);
}

// ---- What follows from it ----

// Without a preset a model needs all of it.
Status CheckWholeShape(const TomlValue& root, const ToldShape& told) {
  if (!told.billions) {
    return WrongAt(root, "model", "parameters_billions",
                   "it is missing; a model without a preset needs it, as in 8.03");
  }
  if (!told.layers || !told.heads || !told.head_dim) {
    return WrongAt(root, "model", "layers",
                   "a model without a preset needs layers, heads and head_dim, as config.json of "
                   "its checkpoint has them");
  }
  if (!told.kv_heads && !told.kv_bytes_per_token) {
    return WrongAt(root, "model", "kv_heads",
                   "it is missing; config.json has it as num_key_value_heads. Or write "
                   "kv_bytes_per_token");
  }
  return Status();
}

// Layers and heads: the preset's, or none, with what is told in their place.
Status SettleHeads(const TomlValue& root, const ToldShape& told, ModelShape* model) {
  const bool has_heads = model->head_dim > 0 || (told.layers && told.heads && told.head_dim);
  for (const auto& [name, value, into] : {std::tuple{"layers", &told.layers, &model->layers},
                                          {"heads", &told.heads, &model->heads},
                                          {"kv_heads", &told.kv_heads, &model->kv_heads},
                                          {"head_dim", &told.head_dim, &model->head_dim}}) {
    if (!*value) continue;
    if (!has_heads) {
      return WrongAt(root, "model", name,
                     "this model does not keep K and V by heads, so this alone says nothing; write "
                     "kv_bytes_per_token");
    }
    *into = **value;
  }
  const double bytes_per_value = told.bytes_per_value.value_or(2);
  if (has_heads) {
    model->Derive(bytes_per_value);
  } else {
    model->kv_bytes_per_token *= bytes_per_value / 2;  // The presets have two.
  }
  if (model->kv_heads <= model->heads) return Status();
  return WrongAt(root, "model", "kv_heads",
                 fmt::format("{} heads of keys for {} of queries are impossible; config.json has "
                             "them as num_key_value_heads and num_attention_heads",
                             model->kv_heads, model->heads));
}

Status SettleModel(const TomlValue& root, const FleetChoices& choices, Reading* reading) {
  const ToldShape& told = reading->shape;
  if (!told.any()) return Status();
  ModelShape& model = reading->fleet.model;
  if (choices.model.empty() && Find(root, "model", "preset") == nullptr) {
    AQ_RETURN_IF_ERROR(CheckWholeShape(root, told));
    model = {.name = "your own"};
  } else {
    model.name += ", changed";
  }
  AQ_RETURN_IF_ERROR(SettleHeads(root, told, &model));
  if (told.billions) {
    model.parameters = *told.billions * 1e9;
    model.weight_bytes = 2 * model.parameters;
  }
  if (told.weight_billion_bytes) model.weight_bytes = *told.weight_billion_bytes * 1e9;
  if (told.kv_bytes_per_token) model.kv_bytes_per_token = *told.kv_bytes_per_token;
  return Status();
}

Status SettlePrefill(const TomlValue& root, Reading* reading) {
  Fleet& fleet = reading->fleet;
  fleet.prefill_told = reading->tokens_per_second.has_value() || reading->coefficients;
  if (reading->tokens_per_second && reading->coefficients) {
    return WrongAt(root, "prefill", "tokens_per_second",
                   "this and step_ms, ms_per_token or ms_per_token_pair say the same thing twice; "
                   "keep one");
  }
  if (reading->tokens_per_second) {
    fleet.prefill = {
        .step_ms = 0, .ms_per_token = 1e3 / *reading->tokens_per_second, .ms_per_token_pair = 0};
    return Status();
  }
  if (reading->coefficients) {
    if (fleet.prefill.ms_per_token > 0) return Status();
    return WrongAt(root, "prefill", "ms_per_token",
                   "it is missing; what a token costs is most of a prefill");
  }
  const double flops_per_ms =
      fleet.gpu.tflops * 1e12 * fleet.gpu.efficiency * fleet.gpus_per_engine / 1e3;
  fleet.prefill = {.step_ms = 1,
                   .ms_per_token = 2 * fleet.model.parameters / flops_per_ms,
                   .ms_per_token_pair = fleet.model.attention_flops_per_pair / flops_per_ms};
  return Status();
}

// The memory of an engine with so many GPUs that weights and kept prefixes share.
double UsableMemory(const Fleet& fleet, uint32_t gpus_per_engine) {
  return fleet.gpu.memory_bytes * gpus_per_engine * kUsableMemory;
}

// The fewest GPUs of a node that hold the weights; 1 where even all of them do not.
uint32_t FewestGpus(const Fleet& fleet) {
  for (uint32_t gpus = 1; gpus <= fleet.gpus_per_node; ++gpus) {
    const bool divides = fleet.gpus_per_node % gpus == 0;
    if (divides && fleet.model.weight_bytes <= UsableMemory(fleet, gpus)) return gpus;
  }
  return 1;
}

Status SettleGpus(const TomlValue& root, Fleet* fleet) {
  if (!fleet->gpus_per_engine_told) fleet->gpus_per_engine = FewestGpus(*fleet);
  if (fleet->gpus_per_node % fleet->gpus_per_engine != 0) {
    return WrongAt(root, "fleet", "gpus_per_engine",
                   fmt::format("{} GPUs in a node cannot be shared out to engines of {}; write a "
                               "divisor of gpus_per_node",
                               fleet->gpus_per_node, fleet->gpus_per_engine));
  }
  if (fleet->gpu.idle_watts > fleet->gpu.watts) {
    return WrongAt(root, "gpu", "idle_watts",
                   fmt::format("{} W when idle are more than {} W when busy", fleet->gpu.idle_watts,
                               fleet->gpu.watts));
  }
  if (!fleet->gpus_per_engine_told &&
      fleet->model.weight_bytes > UsableMemory(*fleet, fleet->gpus_per_node)) {
    return WrongAt(
        root, "fleet", "gpus_per_node",
        fmt::format("{} with {:.0f} GB of weights does not fit into the {} GPU{} of {:.0f} GB of a "
                    "node; write a larger gpus_per_node, or a model or GPU that fits",
                    fleet->model.name, fleet->model.weight_bytes / 1e9, fleet->gpus_per_node,
                    fleet->gpus_per_node == 1 ? "" : "s", fleet->gpu.memory_bytes / 1e9));
  }
  const double memory = UsableMemory(*fleet, fleet->gpus_per_engine);
  if (fleet->model.weight_bytes > memory) {
    return WrongAt(
        root, "fleet", "gpus_per_engine",
        fmt::format("{} with {:.0f} GB of weights does not fit into {} GPU{} of {:.0f} GB; write a "
                    "larger gpus_per_engine, or a model or GPU that fits",
                    fleet->model.name, fleet->model.weight_bytes / 1e9, fleet->gpus_per_engine,
                    fleet->gpus_per_engine == 1 ? "" : "s", fleet->gpu.memory_bytes / 1e9));
  }
  if (!fleet->engine_cache_told) {
    fleet->engine_cache_bytes = kCachedPart * (memory - fleet->model.weight_bytes);
  } else if (fleet->engine_cache_bytes > memory - fleet->model.weight_bytes) {
    return WrongAt(
        root, "gpu", "engine_cache",
        fmt::format("beside the weights an engine has {:.0f} GB; write less, or \"auto\"",
                    (memory - fleet->model.weight_bytes) / 1e9));
  }
  return Status();
}

Status ApplyChoices(const FleetChoices& choices, Fleet* fleet) {
  if (!choices.nodes.empty()) {
    const char* const end = choices.nodes.data() + choices.nodes.size();
    const auto [last, error] = std::from_chars(choices.nodes.data(), end, fleet->nodes);
    if (error != std::errc() || last != end || fleet->nodes < 1 || fleet->nodes > kMaxNodes) {
      return Invalid(
          fmt::format("--nodes: '{}' is not a number from 1 to {}", choices.nodes, kMaxNodes));
    }
  }
  for (const auto& [option, text, bytes] : {std::tuple{"--dram", &choices.dram, &fleet->dram.bytes},
                                            {"--nvme", &choices.nvme, &fleet->nvme.bytes}}) {
    if (text->empty()) continue;
    const Result<uint64_t> size = ParseSize(*text);
    if (!size.ok() || *size > kMaxTierBytes) {
      return Invalid(fmt::format("{}: '{}' is not a size of up to {}; write it like 512GiB", option,
                                 *text, SizeText(kMaxTierBytes)));
    }
    const std::string why_not = HasNoUnit(*text) ? WhyNoBareSize(*size) : "";
    if (!why_not.empty()) return Invalid(fmt::format("{}: {}", option, why_not));
    *bytes = *size;
  }
  return Status();
}

}  // namespace

Result<Fleet> ParseFleet(std::string_view text, const std::string& file,
                         const FleetChoices& choices) {
  AQ_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  Reading reading;
  AQ_RETURN_IF_ERROR(ReadPresets(root, choices, &reading));
  AQ_RETURN_IF_ERROR(ReadSections(root, &reading));
  AQ_RETURN_IF_ERROR(SettleModel(root, choices, &reading));
  AQ_RETURN_IF_ERROR(ApplyChoices(choices, &reading.fleet));
  AQ_RETURN_IF_ERROR(SettleGpus(root, &reading.fleet));
  AQ_RETURN_IF_ERROR(SettlePrefill(root, &reading));
  if (reading.fleet.dram.bytes_per_second == 0) {
    reading.fleet.dram.bytes_per_second =
        reading.fleet.gpu.host_link_bytes_per_second * reading.fleet.gpus_per_engine;
  }
  return reading.fleet;
}

Result<Fleet> LoadFleet(const FleetChoices& choices) {
  if (choices.file.empty()) return ParseFleet("", "without a fleet file", choices);
  const Result<std::string> text = ReadSettingsFile(choices.file);
  if (!text.ok()) return text.status();
  return ParseFleet(*text, choices.file, choices);
}

std::vector<std::string> FleetKeys() {
  std::vector<std::string> keys;
  for (const Setting& setting : FleetSettings()) {
    keys.push_back(fmt::format("{}.{}", setting.section, setting.name));
  }
  return keys;
}

}  // namespace aquifer
