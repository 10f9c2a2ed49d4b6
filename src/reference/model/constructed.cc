#include "reference/model/constructed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>

#include "base/crypto/sha256.h"
#include "base/hash_mix.h"

namespace aquifer::reference {
namespace {

constexpr size_t kCode = 64;  // Signs of a word's code.
constexpr size_t kHeadDim = 128;
constexpr size_t kHidden = 256;
constexpr size_t kHeads = 2;
constexpr uint64_t kCodeSeed = 7;

// The parts of a token's vector.
constexpr size_t kOwnCode = 0;
constexpr size_t kBeforeCode = kCode;      // Code of the token before; written by the first layer.
constexpr size_t kAnswerCode = 2 * kCode;  // Written by the second layer.
constexpr size_t kAlways = 3 * kCode;      // The same in every token.
constexpr size_t kIsNumber = kAlways + 1;
// Marks a name or a full stop: the successors of a name in a list.
constexpr size_t kIsListed = kAlways + 2;
constexpr size_t kIsOther = kAlways + 3;
constexpr size_t kIsBeginning = kAlways + 4;

// Codes have length 8, and so have the marks. Every token therefore has the same length, except the
// beginning, which has no code. Normalising divides all of them by the same number.
constexpr float kMark = 8;
constexpr float kBeginningMark = 11.313708F;  // sqrt(128): mark and missing code.
constexpr float kFirstRms = 0.8660254F;       // sqrt((64 + 64 + 64) / 256)
constexpr float kRootHeadDim = 11.313708F;    // The divisor of scores.
constexpr float kFinalRms = 1.118034F;        // sqrt((64 + 64 + 64 + 64 + 64) / 256)

// Scores, whose powers of e the softmax takes. A match of code and kind scores 240. A match of only
// one of them scores at most 160. The beginning scores 200, or 300 for a head that has nothing to
// do. 32 768 others that score 40 less take 1e-13 of the weight away.
constexpr float kCodeScore = 160;
constexpr float kKindScore = 80;
constexpr float kRestScore = 200;
constexpr float kClosedScore = 300;
constexpr float kBeforeScore = 60;  // For each rotation of the head that looks back by one.
constexpr size_t kBeforeRotations = 16;

// The rotations of a head turn by 10^(-12 i / 64) a token. Those from 32 on turn by at most 0.03 in
// 32 768 tokens, and compare codes. Three more turn by at most 0.12, and are for kinds and the
// beginning.
constexpr double kTheta = 1e12;
constexpr size_t kNumberElement = 31;
constexpr size_t kListedElement = 30;
constexpr size_t kBeginningElement = 29;
constexpr float kKeyMark = 4;  // A key's value there.

constexpr size_t CodeElement(size_t sign) { return sign < 32 ? 32 + sign : 64 + sign; }

bool IsName(uint32_t token) {
  return token >= ConstructedWords::kFirstName && token < ConstructedWords::kFirstNumber;
}

// Makes codes that are far apart: any two differ in 16 to 48 of their 64 signs.
std::vector<uint64_t> MakeCodes() {
  std::vector<uint64_t> codes;
  uint64_t state = kCodeSeed;
  while (codes.size() < ConstructedWords::kCount) {
    const uint64_t code = SplitMix(&state);
    const bool far = std::all_of(codes.begin(), codes.end(), [code](uint64_t other) {
      const int distance = std::popcount(code ^ other);
      return distance >= 16 && distance <= 48;
    });
    if (far) codes.push_back(code);
  }
  return codes;
}

float Sign(uint64_t code, size_t sign) { return (code >> sign & 1) != 0 ? 1.0F : -1.0F; }

// A matrix that is set element by element.
class Sketch {
 public:
  Sketch(size_t outputs, size_t inputs)
      : inputs_(inputs), outputs_(outputs), values_(outputs * inputs) {}
  float& At(size_t output, size_t input) { return values_[output * inputs_ + input]; }
  PackedMatrix Pack() const { return PackedMatrix(values_, outputs_, inputs_); }

 private:
  const size_t inputs_;
  const size_t outputs_;
  std::vector<float> values_;
};

std::vector<float> Embedding(const std::vector<uint64_t>& codes) {
  std::vector<float> embedding(codes.size() * kHidden);
  for (uint32_t token = 0; token < codes.size(); ++token) {
    float* const row = embedding.data() + token * kHidden;
    row[kAlways] = kMark;
    if (token == ConstructedWords::kBeginning) {
      row[kIsBeginning] = kBeginningMark;
      continue;
    }
    for (size_t i = 0; i < kCode; ++i) row[kOwnCode + i] = Sign(codes[token], i);
    const bool listed = IsName(token) || token == ConstructedWords::kFullStop;
    const bool number = token >= ConstructedWords::kFirstNumber;
    row[number ? kIsNumber : listed ? kIsListed : kIsOther] = kMark;
  }
  return embedding;
}

// A layer whose feed-forward part is zero. The caller sets the attention's weights.
LayerWeights EmptyLayer() {
  const ModelShape shape = ConstructedShape();
  LayerWeights layer;
  layer.attention_norm.assign(kHidden, 1);
  layer.feed_forward_norm.assign(kHidden, 1);
  layer.gate = Sketch(shape.intermediate, kHidden).Pack();
  layer.up = Sketch(shape.intermediate, kHidden).Pack();
  layer.down = Sketch(kHidden, shape.intermediate).Pack();
  return layer;
}

// The query of the first head is turned back by one token, so that it matches the key before it.
LayerWeights LookBackLayer() {
  LayerWeights layer = EmptyLayer();
  Sketch query(kHeads * kHeadDim, kHidden);
  Sketch key(kHeadDim, kHidden);
  Sketch value(kHeadDim, kHidden);
  Sketch output(kHidden, kHeads * kHeadDim);
  const float always = kMark / kFirstRms;  // The mark's value after normalising.
  const float strength = kBeforeScore * kRootHeadDim / kKeyMark;
  for (size_t i = 0; i < kBeforeRotations; ++i) {
    const double angle = -std::pow(kTheta, -2.0 * static_cast<double>(i) / kHeadDim);
    query.At(i, kAlways) = strength * static_cast<float>(std::cos(angle)) / always;
    query.At(i + kHeadDim / 2, kAlways) = strength * static_cast<float>(std::sin(angle)) / always;
    key.At(i, kAlways) = kKeyMark / always;
  }
  for (size_t i = 0; i < kCode; ++i) {
    value.At(i, kOwnCode + i) = kFirstRms;
    output.At(kBeforeCode + i, i) = 1;
  }
  layer.query = query.Pack();
  layer.key = key.Pack();
  layer.value = value.Pack();
  layer.output = output.Pack();
  return layer;
}

// One head of the second layer: which code it looks for, among which kind, and when.
struct MatchHead {
  size_t code;
  size_t kind_element;
  size_t open;  // The mark of the tokens for which the head works.
};

void AddMatchHead(size_t head, const MatchHead& match, Sketch* query, Sketch* output) {
  const size_t first = head * kHeadDim;
  for (size_t i = 0; i < kCode; ++i) {
    query->At(first + CodeElement(i), match.code + i) = kCodeScore * kRootHeadDim / kCode;
    output->At(kAnswerCode + i, first + i) = 1;
  }
  query->At(first + match.kind_element, kAlways) = kKindScore * kRootHeadDim / kKeyMark / kMark;
  const float unit = kRootHeadDim / kKeyMark / kMark;
  query->At(first + kBeginningElement, kAlways) = kClosedScore * unit;
  query->At(first + kBeginningElement, match.open) = (kRestScore - kClosedScore) * unit;
}

LayerWeights MatchLayer() {
  LayerWeights layer = EmptyLayer();
  Sketch query(kHeads * kHeadDim, kHidden);
  Sketch key(kHeadDim, kHidden);
  Sketch value(kHeadDim, kHidden);
  Sketch output(kHidden, kHeads * kHeadDim);
  AddMatchHead(0, {kOwnCode, kNumberElement, kIsListed}, &query, &output);
  AddMatchHead(1, {kBeforeCode, kListedElement, kIsNumber}, &query, &output);
  for (size_t i = 0; i < kCode; ++i) {
    key.At(CodeElement(i), kBeforeCode + i) = 1;
    value.At(i, kOwnCode + i) = 1;
  }
  key.At(kNumberElement, kIsNumber) = kKeyMark / kMark;
  key.At(kListedElement, kIsListed) = kKeyMark / kMark;
  key.At(kBeginningElement, kIsBeginning) = kKeyMark * kFirstRms / kBeginningMark;
  layer.query = query.Pack();
  layer.key = key.Pack();
  layer.value = value.Pack();
  layer.output = output.Pack();
  return layer;
}

// Compares the answer's code with every word's. The beginning wins if there is no answer.
PackedMatrix Head(const std::vector<uint64_t>& codes) {
  constexpr float kRightLogit = 64;
  constexpr float kNoneLogit = 40;  // A wrong word scores at most half as much as the right one.
  Sketch head(codes.size(), kHidden);
  for (uint32_t token = 0; token < codes.size(); ++token) {
    if (token == ConstructedWords::kBeginning) {
      head.At(token, kAlways) = kNoneLogit * kFinalRms / kMark;
      continue;
    }
    for (size_t i = 0; i < kCode; ++i) {
      head.At(token, kAnswerCode + i) = Sign(codes[token], i) * kRightLogit * kFinalRms / kCode;
    }
  }
  return head.Pack();
}

}  // namespace

std::string ConstructedWords::Word(uint32_t token) {
  static constexpr std::array<std::string_view, kFirstName> kSigns = {
      "<beginning>", ".", ";", "ask", "directory", ",", "user", "assistant"};
  static constexpr std::array<std::string_view, 24> kSyllables = {
      "ba", "be", "di", "do", "fa", "fe", "gi", "ko", "ka", "la", "li", "lo",
      "ma", "me", "ni", "no", "pa", "ra", "ri", "so", "ta", "ti", "vo", "zu"};
  if (token < kFirstName) return std::string(kSigns[token]);
  if (token >= kFirstNumber) return fmt::format("{}", token - kFirstNumber);
  const uint32_t name = token - kFirstName;
  std::string word = fmt::format("{}{}{}", kSyllables[name / (24 * 24)], kSyllables[name / 24 % 24],
                                 kSyllables[name % 24]);
  word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return word;
}

ModelShape ConstructedShape() {
  return {.vocabulary = ConstructedWords::kCount,
          .hidden = kHidden,
          .intermediate = 512,
          .layers = 2,
          .heads = kHeads,
          .kv_heads = 1,
          .head_dim = kHeadDim,
          .max_positions = 36'864,
          .rope_theta = kTheta,
          .rope_stretch = {},
          .norm_epsilon = 1e-6F};
}

std::shared_ptr<const Weights> ConstructedWeights() {
  auto weights = std::make_shared<Weights>();
  weights->shape = ConstructedShape();
  const std::vector<uint64_t> codes = MakeCodes();
  weights->embedding = Embedding(codes);
  weights->layers.push_back(LookBackLayer());
  weights->layers.push_back(MatchLayer());
  weights->final_norm.assign(kHidden, 1);
  weights->head = Head(codes);
  Sha256 hash;
  hash.Update("constructed weights 1, " + weights->shape.ToString());
  weights->digest = hash.Finish();
  return weights;
}

}  // namespace aquifer::reference
