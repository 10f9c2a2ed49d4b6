#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "plan/advice.h"
#include "plan/report/report.h"

namespace aquifer {
namespace {

using Json = nlohmann::ordered_json;

// By the names that a key has in programs.
constexpr std::string_view kStageKeys[] = {"engine", "dram", "nvme", "peers", "durable"};

Json JsonOf(const Outcome& outcome) {
  Json by_stage;
  for (size_t i = 0; i < kStages; ++i) by_stage[std::string(kStageKeys[i])] = outcome.hit_share[i];
  return {{"dram_bytes", outcome.choice.dram_bytes},
          {"nvme_bytes", outcome.choice.nvme_bytes},
          {"peers", outcome.choice.peers},
          {"durable", outcome.choice.durable},
          {"hit_rate", outcome.hit_rate},
          {"hit_rate_by_stage", std::move(by_stage)},
          {"tokens_saved", outcome.tokens_loaded},
          {"tokens_saved_share", outcome.tokens_loaded_share},
          {"ttft_ms_mean", outcome.first_token_ms_mean},
          {"ttft_ms_p50", outcome.first_token_ms_p50},
          {"ttft_ms_p95", outcome.first_token_ms_p95},
          {"gpu_seconds", outcome.gpu_seconds},
          {"gpu_seconds_saved", outcome.gpu_seconds_saved},
          {"watt_hours_saved", outcome.watt_hours_saved},
          {"watt_hours_used", outcome.watt_hours_used},
          {"dollars_saved_month", outcome.dollars_saved_month},
          {"dollars_cost_month", outcome.dollars_cost_month},
          {"dollars_net_month", outcome.net_month()},
          {"dollars_per_million_tokens_saved", outcome.dollars_per_million_tokens},
          {"dollars_per_million_tokens_computed", outcome.dollars_per_million_computed},
          {"nvme_bytes_written_day", outcome.nvme_bytes_written_day},
          {"nvme_drive_writes_per_day", outcome.nvme_drive_writes_day}};
}

Json JsonOf(const TraceFacts& trace) {
  return {{"requests", trace.requests},
          {"seconds", trace.seconds},
          {"prompt_tokens", trace.prompt_tokens},
          {"output_tokens", trace.output_tokens},
          {"block_tokens", trace.block_tokens},
          {"block_bytes", trace.block_bytes},
          {"blocks", trace.block_references},
          {"distinct_blocks", trace.distinct_blocks},
          {"sampled_one_in", trace.sampled_one_in},
          {"outputs_followed", trace.outputs_followed},
          {"memory_bytes", trace.memory_bytes}};
}

Json JsonOf(const Fleet& fleet) {
  return {{"nodes", fleet.nodes},
          {"gpu", fleet.gpu.name},
          {"gpus_per_node", fleet.gpus_per_node},
          {"gpus_per_engine", fleet.gpus_per_engine},
          {"model", fleet.model.name},
          {"kv_bytes_per_token", fleet.model.kv_bytes_per_token},
          {"prefill_step_ms", fleet.prefill.step_ms},
          {"prefill_ms_per_token", fleet.prefill.ms_per_token},
          {"prefill_ms_per_token_pair", fleet.prefill.ms_per_token_pair},
          {"engine_cache_bytes", fleet.engine_cache_bytes}};
}

Json JsonOf(const HitPoint& point) {
  return {{"blocks", point.blocks},
          {"bytes", point.bytes},
          {"share", point.share},
          {"hit_rate", point.hit_rate}};
}

Json JsonOf(const std::optional<LearnedPlan>& learned) {
  if (!learned.has_value()) return Json();
  return {
      {"hit_rate", learned->hit_rate}, {"blocks", learned->references}, {"whole", learned->whole}};
}

template <class Items>
Json ListOf(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(JsonOf(item));
  return list;
}

Json StagesJson(const Plan& plan) {
  Json list = Json::array();
  for (const StagePlan& stage : plan.stages) {
    list.push_back({{"stage", kStageKeys[static_cast<size_t>(stage.stage)]},
                    {"in_fleet", stage.in_fleet},
                    {"possible", stage.possible},
                    {"pays", stage.possible && plan.trace.seconds > 0 && stage.net_month() > 0},
                    {"dollars_saved_month", stage.saved_month},
                    {"dollars_cost_month", stage.cost_month},
                    {"with_those_before", JsonOf(stage.outcome)}});
  }
  return list;
}

Json PurchasesJson(const Plan& plan) {
  Json list = Json::array();
  for (const Purchase& purchase : plan.purchases) {
    list.push_back({{"what", purchase.what},
                    {"dollars_net_month", purchase.net_month},
                    {"outcome", JsonOf(purchase.outcome)}});
  }
  return list;
}

}  // namespace

std::string PlanJson(const Plan& plan) {
  constexpr std::string_view kVerdicts[] = {"pays", "does_not_pay", "unknown"};
  const Purchase* const next = BuyNext(plan);
  Json json = {{"verdict", kVerdicts[static_cast<size_t>(plan.verdict)]},
               {"reasons", plan.reasons},
               {"buy_next", next == nullptr ? Json() : Json(next->what)},
               {"trace", JsonOf(plan.trace)},
               {"fleet", JsonOf(plan.fleet)},
               {"without", JsonOf(plan.without)},
               {"configured", JsonOf(plan.configured)},
               {"predicted_hit_rate", plan.PredictedHitRate()},
               {"learned", JsonOf(plan.learned)},
               {"hit_rate_most", plan.hit_rate_most},
               {"knee", plan.hits.empty() ? Json() : JsonOf(plan.hits[plan.knee])},
               {"hit_curve", ListOf(plan.hits)},
               {"by_dram", ListOf(plan.by_dram)},
               {"by_nvme", ListOf(plan.by_nvme)},
               {"stages", StagesJson(plan)},
               {"purchases", PurchasesJson(plan)},
               {"warnings", plan.warnings},
               {"assumptions", plan.assumptions}};
  return json.dump() + "\n";
}

}  // namespace aquifer
