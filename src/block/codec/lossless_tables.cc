#include "block/codec/lossless_tables.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr int kSlots = 256;
// One slot costs every other value a little: it pays for values at least so frequent.
constexpr uint32_t kLeastShare = 1024;

struct Candidate {
  uint8_t value;
  float share;  // Of kSlots.
  int slots;
};

struct Choice {
  std::array<Candidate, kLosslessCodes> codes;
  size_t count = 0;  // The last one is the escape.
};

Choice FrequentValues(std::span<const uint32_t, 256> counts) {
  uint64_t total = 0;
  for (const uint32_t count : counts) total += count;
  std::array<size_t, 256> order;
  size_t found = 0;
  for (size_t value = 0; value < counts.size(); ++value) {
    if (counts[value] != 0 && uint64_t{counts[value]} * kLeastShare >= total) {
      order[found++] = value;
    }
  }
  const size_t kept = std::min<size_t>(found, kEscapeCode);
  if (kept < found) {
    std::nth_element(order.begin(), order.begin() + kept, order.begin() + found,
                     [&](size_t a, size_t b) { return counts[a] > counts[b]; });
    std::sort(order.begin(), order.begin() + kept);
  }
  Choice choice;
  const float scale = static_cast<float>(kSlots) / static_cast<float>(total);
  float rest = kSlots;
  for (size_t i = 0; i < kept; ++i) {
    const float share = static_cast<float>(counts[order[i]]) * scale;
    choice.codes[choice.count++] = {static_cast<uint8_t>(order[i]), share, 0};
    rest -= share;
  }
  choice.codes[choice.count++] = {0, std::max(rest, 0.0F), 0};
  return choice;
}

// Rounds the shares, then gives and takes single slots where that saves most or costs least: about
// share / slots bits of 256 values.
void ShareSlots(Choice* choice) {
  const std::span<Candidate> codes = std::span(choice->codes).first(choice->count);
  int left = kSlots;
  for (Candidate& code : codes) {
    code.slots = std::clamp(static_cast<int>(std::lround(code.share)), 1, kSlots - 1);
    left -= code.slots;
  }
  for (; left > 0; --left) {
    Candidate* best = nullptr;
    for (Candidate& code : codes) {
      if (code.slots == kSlots - 1) continue;
      if (best == nullptr || code.share * static_cast<float>(2 * best->slots + 1) >
                                 best->share * static_cast<float>(2 * code.slots + 1)) {
        best = &code;
      }
    }
    ++best->slots;
  }
  for (; left < 0; ++left) {
    Candidate* best = nullptr;
    for (Candidate& code : codes) {
      if (code.slots == 1) continue;
      if (best == nullptr || code.share * static_cast<float>(2 * best->slots - 1) <
                                 best->share * static_cast<float>(2 * code.slots - 1)) {
        best = &code;
      }
    }
    --best->slots;
  }
}

// Returns the first slot that no code has, which is the escape's.
int PlaceCodes(const CodeList& codes, LosslessTables* tables) {
  tables->value.fill(0);
  tables->frequency.fill(0);
  tables->start.fill(0);
  int start = 0;
  for (size_t i = 0; i < codes.count; ++i) {
    tables->value[i] = codes.values[i];
    tables->frequency[i] = codes.frequencies[i];
    tables->start[i] = static_cast<uint8_t>(start);
    start += codes.frequencies[i];
  }
  if (start < kSlots) {
    tables->start[kEscapeCode] = static_cast<uint8_t>(start);
    // All 256, where no code has any, do not fit; that is refused by whoever asks.
    tables->frequency[kEscapeCode] = static_cast<uint8_t>(kSlots - start);
  }
  return start;
}

}  // namespace

CodeList ChooseCodes(std::span<const uint32_t, 256> counts) {
  Choice choice = FrequentValues(counts);
  AQ_CHECK(choice.count > 1);
  ShareSlots(&choice);
  CodeList list;
  list.count = choice.count - 1;
  for (size_t i = 0; i < list.count; ++i) {
    list.values[i] = choice.codes[i].value;
    list.frequencies[i] = static_cast<uint8_t>(choice.codes[i].slots);
  }
  return list;
}

bool MakeDecodeTables(const CodeList& codes, LosslessTables* tables) {
  if (codes.count == 0 || codes.count > kEscapeCode) return false;
  const int escape = PlaceCodes(codes, tables);
  if (escape == 0 || escape >= kSlots) return false;
  tables->code_of_slot.fill(kEscapeCode);
  for (size_t i = 0; i < codes.count; ++i) {
    std::fill_n(tables->code_of_slot.begin() + tables->start[i], codes.frequencies[i],
                static_cast<uint8_t>(i));
  }
  return true;
}

void MakeEncodeTables(const CodeList& codes, LosslessTables* tables) {
  const int escape = PlaceCodes(codes, tables);
  AQ_CHECK(escape > 0 && escape < kSlots);
  tables->code_of_value.fill(kEscapeCode);
  for (size_t i = 0; i < codes.count; ++i) {
    tables->code_of_value[codes.values[i]] = static_cast<uint8_t>(i);
  }
  for (size_t i = 0; i < kLosslessCodes; ++i) {
    const unsigned frequency = tables->frequency[i];
    const unsigned reciprocal = frequency <= 1 ? 65535 : 65536 / frequency;
    tables->reciprocal_low[i] = static_cast<uint8_t>(reciprocal);
    tables->reciprocal_high[i] = static_cast<uint8_t>(reciprocal >> 8);
  }
}

}  // namespace aquifer
