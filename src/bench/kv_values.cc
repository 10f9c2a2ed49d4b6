#include "bench/kv_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "base/bytes.h"

namespace aquifer {
namespace {

constexpr size_t kHeads = 8;
constexpr size_t kTokens = 64;
constexpr size_t kChannels = 128;

using Vector = std::array<float, kChannels>;

uint16_t BFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Writes values until there is no room.
class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}

  bool full() const { return bytes_.size() < sizeof(uint16_t); }
  void Put(const Vector& vector) {
    for (size_t i = 0; i < vector.size() && !full(); ++i) {
      PutU16(bytes_.data(), BFloat16(vector[i]));
      bytes_ = bytes_.subspan(sizeof(uint16_t));
    }
  }

 private:
  std::span<std::byte> bytes_;
};

class Source {
 public:
  explicit Source(uint64_t seed) : bits_(seed) {}

  float Normal() { return normal_(bits_); }
  float LogNormal(float deviation) { return std::exp(deviation * Normal()); }
  bool OneIn(uint64_t count) { return bits_() % count == 0; }

 private:
  std::mt19937_64 bits_;
  std::normal_distribution<float> normal_;
};

// Turns channels c and c + 64 by an angle that grows with the position, slower for larger c.
void Rotate(Vector* vector, size_t position) {
  for (size_t c = 0; c < kChannels / 2; ++c) {
    const float frequency = std::pow(500000.0F, -2.0F * static_cast<float>(c) / kChannels);
    const float angle = static_cast<float>(position) * frequency;
    const float x = (*vector)[c];
    const float y = (*vector)[c + kChannels / 2];
    (*vector)[c] = x * std::cos(angle) - y * std::sin(angle);
    (*vector)[c + kChannels / 2] = x * std::sin(angle) + y * std::cos(angle);
  }
}

struct Channels {
  Vector mean{};
  Vector scale{};
};

Channels KeyChannels(Source* source, float layer_scale) {
  Channels channels;
  for (size_t c = 0; c < kChannels; ++c) {
    channels.scale[c] = layer_scale * source->LogNormal(0.5F);
    channels.mean[c] = channels.scale[c] * source->Normal();
    if (source->OneIn(64)) channels.mean[c] += (source->OneIn(2) ? 10 : -10) * layer_scale;
  }
  return channels;
}

Channels ValueChannels(Source* source, float layer_scale) {
  Channels channels;
  for (float& scale : channels.scale) scale = 0.3F * layer_scale * source->LogNormal(0.25F);
  return channels;
}

void PutHead(const Channels& channels, bool is_key, size_t first_position, Source* source,
             Writer* writer) {
  for (size_t token = 0; token < kTokens && !writer->full(); ++token) {
    Vector vector;
    for (size_t c = 0; c < kChannels; ++c) {
      vector[c] = channels.mean[c] + channels.scale[c] * source->Normal();
    }
    if (is_key) Rotate(&vector, first_position + token);
    writer->Put(vector);
  }
}

}  // namespace

void FillLikeKv(std::span<std::byte> bytes, uint64_t seed) {
  Source source(seed);
  Writer writer(bytes);
  const size_t first_position = seed * kTokens % 32768;
  while (!writer.full()) {
    const float layer_scale = source.LogNormal(0.4F);
    for (const bool is_key : {true, false}) {
      for (size_t head = 0; head < kHeads && !writer.full(); ++head) {
        const Channels channels =
            is_key ? KeyChannels(&source, layer_scale) : ValueChannels(&source, layer_scale);
        PutHead(channels, is_key, first_position, &source, &writer);
      }
    }
  }
}

}  // namespace aquifer
