#include "policy/cost/prefill_model.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

constexpr double kScale = 1024;  // Tokens to which the terms are scaled.
constexpr double kMaxMs = 3'600'000;

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

// Samples of one size alone cannot tell the terms apart. A slight preference then makes the linear
// term explain them, which errs least for other sizes; it is lost in the noise of varied samples.
constexpr Vector kRidge = {1e-4, 1e-6, 1e-4};

Vector Terms(double tokens, double context) {
  const double n = tokens / kScale;
  return {1, n, n * (context / kScale + n / 2)};
}

// Solves the equations for the terms in `mask` with the others zero; false: they are singular.
bool SolveFor(unsigned mask, const Matrix& moments, const Vector& targets, Vector* solution) {
  Matrix a = moments;
  Vector b = targets;
  for (size_t i = 0; i < 3; ++i) {
    if ((mask >> i & 1) != 0) continue;
    for (size_t j = 0; j < 3; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  // The matrix is symmetric and positive definite: no pivoting is needed.
  for (size_t i = 0; i < 3; ++i) {
    if (!(a[i][i] > 0)) return false;
    for (size_t j = i + 1; j < 3; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < 3; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  for (size_t i = 3; i-- > 0;) {
    double value = b[i];
    for (size_t k = i + 1; k < 3; ++k) value -= a[i][k] * (*solution)[k];
    (*solution)[i] = value / a[i][i];
  }
  return true;
}

// What the squared error is, up to a constant.
double Error(const Matrix& moments, const Vector& targets, const Vector& x) {
  double error = 0;
  for (size_t i = 0; i < 3; ++i) {
    error -= 2 * targets[i] * x[i];
    for (size_t j = 0; j < 3; ++j) error += x[i] * moments[i][j] * x[j];
  }
  return error;
}

}  // namespace

PrefillModel::PrefillModel(const PrefillModelOptions& options) : options_(options) {}

void PrefillModel::Add(const PrefillSample& sample) {
  if (sample.tokens == 0 || !(sample.elapsed_ms > 0) || sample.elapsed_ms > kMaxMs) return;
  const Vector terms = Terms(sample.tokens, sample.context);
  const double size_ms = std::max(sample.elapsed_ms, options_.noise_ms);
  const double weight = 1 / (size_ms * size_ms);
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      moments_[i][j] = options_.forgetting * moments_[i][j] + weight * terms[i] * terms[j];
    }
    targets_[i] = options_.forgetting * targets_[i] + weight * terms[i] * sample.elapsed_ms;
  }
  ++samples_;
  Fit();
}

// With three terms, the best fit without negative ones is found by trying every subset.
void PrefillModel::Fit() {
  Matrix moments = moments_;
  for (size_t i = 0; i < kTerms; ++i) moments[i][i] *= 1 + kRidge[i];
  Vector best{};
  double least = 0;  // The error of all zeros.
  for (unsigned mask = 1; mask < 8; ++mask) {
    Vector solution{};
    if (!SolveFor(mask, moments, targets_, &solution)) continue;
    if (std::any_of(solution.begin(), solution.end(), [](double x) { return !(x >= 0); })) continue;
    const double error = Error(moments, targets_, solution);
    if (error < least) {
      least = error;
      best = solution;
    }
  }
  fitted_ = {best[0], best[1] / kScale, best[2] / (kScale * kScale)};
}

std::optional<PrefillCoefficients> PrefillModel::coefficients() const {
  if (samples_ < options_.min_samples) return std::nullopt;
  return fitted_;
}

std::optional<double> PrefillModel::EstimateMs(uint32_t tokens, uint32_t context) const {
  if (samples_ < options_.min_samples) return std::nullopt;
  return fitted_.Milliseconds(tokens, context);
}

PrefillModels::PrefillModels(const PrefillModelsOptions& options) : options_(options) {}

// Whoever reports for ever more engines pushes out what is known of its own.
void PrefillModels::MakeRoom() {
  std::map<uint16_t, size_t> counts;
  for (const auto& [name, entry] : models_) ++counts[name.tenant];
  const uint16_t most = std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
                          return a.second < b.second;
                        })->first;
  const auto begin = models_.lower_bound({.tenant = most});
  const auto end = std::find_if(begin, models_.end(),
                                [most](const auto& item) { return item.first.tenant != most; });
  models_.erase(std::min_element(
      begin, end, [](auto& a, auto& b) { return a.second.last_added < b.second.last_added; }));
}

void PrefillModels::Add(const PrefillName& name, const PrefillSample& sample) {
  auto found = models_.find(name);
  if (found == models_.end()) {
    if (models_.size() >= std::max<size_t>(options_.max_models, 1)) MakeRoom();
    found = models_.emplace(name, Entry{PrefillModel(options_.model), 0}).first;
  }
  found->second.model.Add(sample);
  found->second.last_added = ++added_;
  const auto coefficients = found->second.model.coefficients();
  if (coefficients) latest_[{name.layout, name.tenant}] = *coefficients;
}

std::optional<PrefillCoefficients> PrefillModels::Find(const PrefillName& name) const {
  const auto own = models_.find(name);
  if (own != models_.end() && own->second.model.coefficients().has_value()) {
    return own->second.model.coefficients();
  }
  const Entry* latest = nullptr;
  for (auto it = models_.lower_bound({.tenant = name.tenant, .layout = name.layout});
       it != models_.end() && it->first.tenant == name.tenant && it->first.layout == name.layout;
       ++it) {
    if (!it->second.model.coefficients().has_value()) continue;
    if (latest == nullptr || it->second.last_added > latest->last_added) latest = &it->second;
  }
  return latest == nullptr ? std::nullopt : latest->model.coefficients();
}

std::optional<PrefillCoefficients> PrefillModels::Latest(uint16_t tenant, uint16_t layout) const {
  const auto found = latest_.find({layout, tenant});
  return found == latest_.end() ? std::nullopt : std::optional(found->second);
}

void PrefillModels::Forget(uint32_t engine) {
  std::erase_if(models_, [&](const auto& item) { return item.first.engine == engine; });
}

void PrefillModels::ForgetLayout(uint16_t layout) {
  std::erase_if(models_, [&](const auto& item) { return item.first.layout == layout; });
  latest_.erase(latest_.lower_bound({layout, 0}), latest_.upper_bound({layout, UINT16_MAX}));
}

}  // namespace aquifer
