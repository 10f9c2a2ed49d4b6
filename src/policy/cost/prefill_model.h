// How long an engine takes to prefill: n tokens on top of a context of c take
//
//   a + b * n + d * n * (c + n / 2)
//
// milliseconds: a fixed step, the linear layers, and attention, in which every new token sees the
// context and on average half of the new ones. The three are fitted online from what engines
// report, by least squares with forgetting, each at least zero. Errors count relative to the time
// taken: ten milliseconds matter in a short prefill and not in a long one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace aquifer {

struct PrefillModelOptions {
  uint32_t min_samples = 4;  // Before that many the answer is "unknown".
  double forgetting = 0.98;  // The weight of what is known, at each new sample.
  // Milliseconds to which relative errors are floored: shorter prefills are mostly noise.
  double noise_ms = 1;
};

struct PrefillSample {
  uint32_t tokens = 0;   // Computed now.
  uint32_t context = 0;  // There already.
  double elapsed_ms = 0;
};

struct PrefillCoefficients {
  double step_ms = 0;
  double ms_per_token = 0;
  double ms_per_token_pair = 0;

  // 0 for 0 tokens: no step is taken then.
  double Milliseconds(double tokens, double context) const {
    if (tokens <= 0) return 0;
    return step_ms + ms_per_token * tokens + ms_per_token_pair * tokens * (context + tokens / 2);
  }
};

class PrefillModel {
 public:
  explicit PrefillModel(const PrefillModelOptions& options);

  // Samples of no tokens, or of no or absurd time (over an hour), are ignored.
  void Add(const PrefillSample& sample);

  // None until there are enough samples.
  std::optional<PrefillCoefficients> coefficients() const;
  std::optional<double> EstimateMs(uint32_t tokens, uint32_t context) const;
  uint64_t samples() const { return samples_; }

 private:
  static constexpr size_t kTerms = 3;

  void Fit();

  PrefillModelOptions options_;
  // The normal equations, weighted and decayed, over terms scaled to be near one.
  std::array<std::array<double, kTerms>, kTerms> moments_{};
  std::array<double, kTerms> targets_{};
  PrefillCoefficients fitted_;
  uint64_t samples_ = 0;
};

// One model for each engine and layout: engines differ in GPU and parallelism, layouts in the
// model. No tenant's engines tell anything to another's.
struct PrefillModelsOptions {
  PrefillModelOptions model{};
  // Of the tenant that has the most, the one that has gone longest without a sample makes room.
  size_t max_models = 1024;
};

struct PrefillName {
  uint16_t tenant = 0;
  uint16_t layout = 0;
  uint32_t engine = 0;
  friend auto operator<=>(const PrefillName&, const PrefillName&) = default;
};

class PrefillModels {
 public:
  explicit PrefillModels(const PrefillModelsOptions& options);

  void Add(const PrefillName& name, const PrefillSample& sample);
  // That engine's; else that of the engine heard of last with the same tenant and layout; else
  // none. Not of one that is gone (Latest()): what a caller is advised of is its own times, and one
  // that nobody measures any more may be of another machine.
  std::optional<PrefillCoefficients> Find(const PrefillName& name) const;
  // That of the engine heard of last with the tenant and layout, also when it is gone since: what
  // computing a block takes.
  std::optional<PrefillCoefficients> Latest(uint16_t tenant, uint16_t layout) const;
  // The engine is gone.
  void Forget(uint32_t engine);
  void ForgetLayout(uint16_t layout);
  size_t size() const { return models_.size(); }

 private:
  struct Entry {
    PrefillModel model;
    uint64_t last_added = 0;  // In samples over all models.
  };
  void MakeRoom();

  const PrefillModelsOptions options_;
  std::map<PrefillName, Entry> models_;
  // By layout and tenant: as many as there are layouts, until ForgetLayout().
  std::map<std::pair<uint16_t, uint16_t>, PrefillCoefficients> latest_;
  uint64_t added_ = 0;
};

}  // namespace aquifer
