// Tests that the model is right, and that its results do not depend on how a sequence is cut.
#include "reference/model/model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <numeric>

#include "reference/engine/sampling.h"
#include "reference/model/constructed.h"
#include "reference/model/page_pool.h"
#include "reference/model/safetensors.h"
#include "reference/model/tokenizer.h"
#include "reference/server/answer_text.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A model with pages for one sequence, in another order than that of its tokens.
class OneSequence {
 public:
  OneSequence(std::shared_ptr<const Weights> weights, const Kernels& kernels, size_t threads,
              uint32_t page_tokens)
      : model_(std::move(weights), kernels, threads),
        pages_(model_.shape(), model_.shape().max_positions / page_tokens + 1, page_tokens) {
    for (uint32_t page = pages_.pages(); page-- > 0;) table_.push_back(page);
  }

  // The logits of every token, computed in pieces of these lengths, over and over.
  std::vector<float> Run(const std::vector<uint32_t>& tokens, std::vector<size_t> pieces,
                         LogitRows rows = LogitRows::kAll) {
    std::vector<float> all;
    size_t at = 0;
    for (size_t piece = 0; at < tokens.size(); ++piece) {
      const size_t count = std::min(pieces[piece % pieces.size()], tokens.size() - at);
      const bool last = at + count == tokens.size();
      const Chunk chunk{.tokens = std::span(tokens).subspan(at, count),
                        .position = static_cast<uint32_t>(at),
                        .page_table = table_,
                        .logits = rows == LogitRows::kAll || last ? rows : LogitRows::kNone};
      const std::span<const float> logits = model_.Forward(std::span(&chunk, 1), &pages_);
      all.insert(all.end(), logits.begin(), logits.end());
      at += count;
    }
    return all;
  }

  Model& model() { return model_; }
  KvPages& pages() { return pages_; }
  const std::vector<uint32_t>& table() const { return table_; }

 private:
  Model model_;
  KvPages pages_;
  std::vector<uint32_t> table_;
};

std::vector<uint32_t> RandomTokens(size_t count, uint32_t vocabulary, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.Next64() % vocabulary);
  return tokens;
}

std::vector<const Kernels*> AllKernels() {
  std::vector<const Kernels*> sets(8);
  sets.resize(UsableKernels(sets.data(), sets.size()));
  return sets;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::shared_ptr<const Weights> Random(const ModelShape& shape, uint64_t seed) {
  auto weights = RandomWeights(shape, seed);
  EXPECT_TRUE(weights.ok()) << weights.status().ToString();
  return *weights;
}

// ---- Right ----

// The same formulas written plainly, in double. K and V are rounded as the pages round them.
class PlainModel {
 public:
  explicit PlainModel(const ModelShape& shape, uint64_t seed) : shape_(shape) {
    weights_ = Random(shape, seed);
  }

  std::shared_ptr<const Weights> weights() const { return weights_; }

  std::vector<double> LastLogits(const std::vector<uint32_t>& tokens) {
    const size_t hidden = shape_.hidden;
    std::vector<std::vector<double>> x(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* row = weights_->embedding.data() + tokens[i] * hidden;
      x[i].assign(row, row + hidden);
    }
    for (const LayerWeights& layer : weights_->layers) RunLayer(layer, &x);
    return Times(weights_->head, Normal(x.back(), weights_->final_norm));
  }

 private:
  using Vector = std::vector<double>;

  static Vector Times(const PackedMatrix& matrix, const Vector& x) {
    Vector y(matrix.outputs());
    for (size_t out = 0; out < y.size(); ++out) {
      const float* panel = matrix.panels(out / kPanelColumns * kPanelColumns);
      for (size_t in = 0; in < x.size(); ++in) {
        y[out] += x[in] * panel[in * kPanelColumns + out % kPanelColumns];
      }
    }
    return y;
  }

  Vector Normal(const Vector& x, const std::vector<float>& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double root = std::sqrt(squares / static_cast<double>(x.size()) + shape_.norm_epsilon);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / root * weight[i];
    return y;
  }

  // Speed of a rotation. Llama 3's stretching slows slow ones down, and blends those in between.
  double Speed(size_t i) const {
    const double speed =
        std::pow(shape_.rope_theta, -2.0 * static_cast<double>(i) / shape_.head_dim);
    if (!shape_.rope_stretch) return speed;
    const RopeStretch& stretch = *shape_.rope_stretch;
    const double turns = stretch.original_positions * speed / (2 * std::numbers::pi);
    const double fast =
        std::clamp((turns - stretch.low_frequency_factor) /
                       (stretch.high_frequency_factor - stretch.low_frequency_factor),
                   0.0, 1.0);
    return fast * speed + (1 - fast) * speed / stretch.factor;
  }

  void Rotate(Vector* x, size_t position) const {
    const size_t half = shape_.head_dim / 2;
    for (size_t head = 0; head < x->size(); head += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * Speed(i);
        double& a = (*x)[head + i];
        double& b = (*x)[head + half + i];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = turned;
      }
    }
  }

  void RunLayer(const LayerWeights& layer, std::vector<Vector>* x) {
    std::vector<Vector> q, k, v;
    for (size_t i = 0; i < x->size(); ++i) {
      const Vector normal = Normal((*x)[i], layer.attention_norm);
      q.push_back(Times(layer.query, normal));
      k.push_back(Times(layer.key, normal));
      v.push_back(Times(layer.value, normal));
      Rotate(&q.back(), i);
      Rotate(&k.back(), i);
    }
    for (size_t i = 0; i < x->size(); ++i) {
      Add(Times(layer.output, Attend(q[i], k, v, i)), &(*x)[i]);
      const Vector normal = Normal((*x)[i], layer.feed_forward_norm);
      Vector gate = Times(layer.gate, normal);
      const Vector up = Times(layer.up, normal);
      for (size_t j = 0; j < gate.size(); ++j) gate[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
      Add(Times(layer.down, gate), &(*x)[i]);
    }
  }

  static void Add(const Vector& terms, Vector* sums) {
    for (size_t i = 0; i < terms.size(); ++i) (*sums)[i] += terms[i];
  }

  Vector Attend(const Vector& q, const std::vector<Vector>& k, const std::vector<Vector>& v,
                size_t position) const {
    const size_t dim = shape_.head_dim;
    Vector result(q.size());
    for (size_t head = 0; head < shape_.heads; ++head) {
      const size_t kv = head / (shape_.heads / shape_.kv_heads) * dim;
      Vector weights(position + 1);
      double sum = 0;
      for (size_t j = 0; j <= position; ++j) {
        double score = 0;
        for (size_t d = 0; d < dim; ++d) score += q[head * dim + d] * k[j][kv + d];
        sum += weights[j] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      for (size_t j = 0; j <= position; ++j) {
        for (size_t d = 0; d < dim; ++d) result[head * dim + d] += weights[j] / sum * v[j][kv + d];
      }
    }
    return result;
  }

  const ModelShape shape_;
  std::shared_ptr<const Weights> weights_;
};

void ExpectWhatTheFormulasSay(const ModelShape& shape) {
  PlainModel plain(shape, 3);
  const std::vector<uint32_t> tokens = RandomTokens(150, shape.vocabulary, 4);
  const std::vector<double> expected = plain.LastLogits(tokens);
  for (const Kernels* kernels : AllKernels()) {
    OneSequence ours(plain.weights(), *kernels, 2, 16);
    const std::vector<float> logits = ours.Run(tokens, {150}, LogitRows::kLast);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      // K and V are in bfloat16, which has eight bits.
      EXPECT_NEAR(logits[i], expected[i], 0.03) << kernels->name << " logit " << i;
    }
  }
}

TEST(ModelTest, ComputesTheFormulas) {
  ModelShape shape{.vocabulary = 61,
                   .hidden = 48,
                   .intermediate = 70,
                   .layers = 2,
                   .heads = 6,
                   .kv_heads = 2,
                   .head_dim = 10,
                   .max_positions = 256};
  ExpectWhatTheFormulasSay(shape);
  // Of its five rotations one is left as it is, one is blended, and three are stretched.
  shape.rope_theta = 2000;
  shape.rope_stretch = RopeStretch{.factor = 8,
                                   .low_frequency_factor = 1,
                                   .high_frequency_factor = 10,
                                   .original_positions = 100};
  ExpectWhatTheFormulasSay(shape);
}

// ---- The same, however it is cut ----

ModelShape SomeShape(uint64_t seed) {
  SeededRandom random(seed);
  const auto below = [&](uint32_t most) { return static_cast<uint32_t>(random.Next64() % most); };
  ModelShape shape;
  shape.vocabulary = 40 + below(100);
  shape.hidden = 16 + below(80);
  shape.intermediate = 16 + below(120);
  shape.layers = 1 + below(3);
  shape.kv_heads = 1 + below(3);
  shape.heads = shape.kv_heads * (1 + below(4));
  shape.head_dim = 2 * (2 + below(24));
  shape.max_positions = 512;
  return shape;
}

TEST(ModelTest, LogitsAreTheSameBitsInAnySplit) {
  const uint64_t shapes = ByTestLevel<uint64_t>(4, 8, 40);
  for (uint64_t seed = 0; seed < shapes; ++seed) {
    const ModelShape shape = SomeShape(seed);
    const auto weights = Random(shape, seed);
    const std::vector<uint32_t> tokens = RandomTokens(300, shape.vocabulary, seed);
    for (const Kernels* kernels : AllKernels()) {
      SCOPED_TRACE(fmt::format("{} {}", kernels->name, shape.ToString()));
      OneSequence whole(weights, *kernels, 1, 16);
      const std::vector<float> expected = whole.Run(tokens, {tokens.size()});
      OneSequence cut(weights, *kernels, 2, seed % 2 == 0 ? 8 : 128);
      EXPECT_TRUE(SameBits(cut.Run(tokens, {1 + seed * 7 % 64, 5, 64, 1, 130}), expected));
      EXPECT_TRUE(SameBits(cut.Run(tokens, {1}), expected));
    }
  }
}

TEST(ModelTest, LogitsAreTheSameBitsWhateverElseIsInTheBatch) {
  const ModelShape shape = SomeShape(77);
  const auto weights = Random(shape, 1);
  const std::vector<uint32_t> first = RandomTokens(200, shape.vocabulary, 1);
  const std::vector<uint32_t> second = RandomTokens(90, shape.vocabulary, 2);
  OneSequence alone(weights, ChosenKernels(), 1, 16);
  const std::vector<float> expected = alone.Run(second, {90}, LogitRows::kLast);
  OneSequence both(weights, ChosenKernels(), 2, 16);
  const std::span<const uint32_t> table = both.table();
  const std::vector<Chunk> chunks = {
      {.tokens = first, .position = 0, .page_table = table.first(13), .logits = LogitRows::kNone},
      {.tokens = second, .position = 0, .page_table = table.subspan(13)}};
  const std::span<const float> logits = both.model().Forward(chunks, &both.pages());
  EXPECT_TRUE(SameBits(logits, expected));
}

// ---- The constructed model ----

struct Question {
  std::vector<uint32_t> prompt;
  std::vector<uint32_t> answer;  // Up to the full stop.
};

// A directory that fills `tokens` together with the question, and `lookups` names asked for.
Question MakeQuestion(size_t tokens, size_t lookups, uint64_t seed) {
  using Words = ConstructedWords;
  SeededRandom random(seed);
  std::vector<uint32_t> names(kConstructedNames);
  std::iota(names.begin(), names.end(), Words::kFirstName);
  for (size_t i = names.size(); i-- > 1;) std::swap(names[i], names[random.Next64() % (i + 1)]);
  Question question;
  question.prompt = {Words::kBeginning, Words::kDirectory};
  std::vector<uint32_t> numbers;
  while (question.prompt.size() + 3 + lookups + 3 <= tokens) {
    numbers.push_back(Words::kFirstNumber +
                      static_cast<uint32_t>(random.Next64() % kConstructedNumbers));
    question.prompt.insert(question.prompt.end(),
                           {names[numbers.size() - 1], numbers.back(), Words::kSemicolon});
  }
  std::vector<uint32_t> asked(numbers.size());
  std::iota(asked.begin(), asked.end(), 0);
  for (size_t i = asked.size(); i-- > 1;) std::swap(asked[i], asked[random.Next64() % (i + 1)]);
  asked.resize(lookups);
  question.prompt.push_back(Words::kAsk);
  for (const uint32_t entry : asked) question.prompt.push_back(names[entry]);
  question.prompt.push_back(Words::kFullStop);
  question.prompt.push_back(names[asked[0]]);
  for (size_t i = 0; i < lookups; ++i) {
    question.answer.push_back(numbers[asked[i]]);
    question.answer.push_back(i + 1 < lookups ? names[asked[i + 1]] : Words::kFullStop);
  }
  return question;
}

std::vector<uint32_t> Answer(OneSequence* sequence, std::vector<uint32_t> tokens, size_t most) {
  std::vector<float> logits = sequence->Run(tokens, {512}, LogitRows::kLast);
  std::vector<uint32_t> answer;
  uint64_t random = 0;
  while (answer.size() < most) {
    answer.push_back(Sample(logits, 0, 1, &random));
    if (answer.back() <= ConstructedWords::kFullStop) break;
    tokens.push_back(answer.back());
    const Chunk chunk{.tokens = std::span(tokens).last(1),
                      .position = static_cast<uint32_t>(tokens.size() - 1),
                      .page_table = sequence->table()};
    const auto next = sequence->model().Forward(std::span(&chunk, 1), &sequence->pages());
    logits.assign(next.begin(), next.end());
  }
  return answer;
}

TEST(ConstructedModelTest, AnswersEveryLookup) {
  OneSequence sequence(ConstructedWeights(), ChosenKernels(), 2, 16);
  const size_t longest = ByTestLevel<size_t>(1500, 4096, 32'768);
  for (const size_t tokens : {size_t{64}, size_t{700}, longest}) {
    for (const size_t lookups : {1, 2, 17, 64, 256}) {
      if (tokens < 8 * lookups) continue;
      const Question question = MakeQuestion(tokens, lookups, tokens + lookups);
      EXPECT_EQ(Answer(&sequence, question.prompt, question.answer.size() + 4), question.answer)
          << tokens << " tokens, " << lookups << " lookups";
    }
  }
}

TEST(ConstructedModelTest, SaysNothingOfANameThatIsNotThere) {
  OneSequence sequence(ConstructedWeights(), ChosenKernels(), 2, 16);
  Question question = MakeQuestion(300, 1, 9);
  const uint32_t stranger = ConstructedWords::kFirstName + 5;
  for (uint32_t& token : question.prompt) {
    if (token == stranger) token = ConstructedWords::kFirstName + 6;
  }
  question.prompt.end()[-3] = question.prompt.end()[-1] = stranger;
  EXPECT_THAT(Answer(&sequence, question.prompt, 4), ElementsAre(ConstructedWords::kBeginning));
}

TEST(ConstructedModelTest, IsTheSameBitsInAnySplit) {
  const auto weights = ConstructedWeights();
  const Question question = MakeQuestion(500, 3, 5);
  for (const Kernels* kernels : AllKernels()) {
    OneSequence whole(weights, *kernels, 1, 16);
    OneSequence cut(weights, *kernels, 2, 32);
    const auto expected = whole.Run(question.prompt, {1000}, LogitRows::kLast);
    EXPECT_TRUE(SameBits(cut.Run(question.prompt, {256, 3, 1}, LogitRows::kLast), expected));
  }
}

// Weights that somebody else made may give any logits.
TEST(SamplingTest, LogitsThatAreNoNumbersAreNeverChosenAndDoNoHarm) {
  std::vector<float> logits(300, 1.0F);
  for (size_t i = 0; i < logits.size(); i += 3) logits[i] = NAN;
  logits[1] = 3;
  uint64_t random = 7;
  for (size_t i = 0; i < 100; ++i) {
    for (const float temperature : {0.0F, 1.0F}) {
      const uint32_t chosen = Sample(logits, temperature, 0.9F, &random);
      ASSERT_LT(chosen, logits.size());
      EXPECT_FALSE(std::isnan(logits[chosen]));
    }
  }
  EXPECT_EQ(Sample(logits, 0, 1, &random), 1u);
  logits[4] = INFINITY;
  EXPECT_EQ(Sample(logits, 1, 1, &random), 4u);
  logits.assign(300, NAN);
  EXPECT_LT(Sample(logits, 1, 1, &random), logits.size());
}

// ---- Words ----

TEST(TokenizerTest, WordsComeBackAsTheyWere) {
  const auto words = NewWordTokenizer();
  const auto tokens = words->Encode("directory Bababa 417 ; ask Bababa. Bababa");
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  std::string text;
  for (const uint32_t token : std::span(*tokens).subspan(1)) text += words->Decode(token);
  EXPECT_EQ(text, " directory Bababa 417 ; ask Bababa . Bababa");
  EXPECT_THAT(words->Encode("ask Nobody").status().message(), HasSubstr("'Nobody'"));
}

TEST(AnswerTextTest, HoldsBackHalfCharactersAndStopWords) {
  AnswerText text({"END"});
  EXPECT_EQ(text.Append("a\xC3"), "a");
  EXPECT_EQ(text.Append("\xA4 E"), "\xC3\xA4 ");
  EXPECT_EQ(text.Append("N"), "");
  EXPECT_EQ(text.Append("X"), "ENX");
  EXPECT_EQ(text.Append("yEN"), "y");
  EXPECT_EQ(text.Append("D more"), "");
  EXPECT_TRUE(text.stopped());
}

// ---- Pages ----

TEST(PagePoolTest, KeepsCompleteBlocksUntilTheirPagesAreNeeded) {
  PagePool pool(8, 2);
  const std::vector<Key> keys = {Key{.bytes = {std::byte{1}}}, Key{.bytes = {std::byte{2}}}};
  PageTable first;
  ASSERT_TRUE(pool.Grow(5, &first));
  EXPECT_TRUE(pool.Publish(keys[0], 0, &first));
  EXPECT_TRUE(pool.Publish(keys[1], 1, &first));
  const std::vector<uint32_t> pages = first.pages;
  EXPECT_EQ(pool.available(), 3u);
  PageTable second;
  EXPECT_EQ(pool.Adopt(keys, &second), 2u);
  EXPECT_EQ(second.pages, std::vector(pages.begin(), pages.begin() + 4));
  pool.Release(keys, &first);
  EXPECT_EQ(pool.available(), 4u);  // Pages of the second sequence are not available.
  pool.Release(keys, &second);
  EXPECT_EQ(pool.available(), 8u);
  PageTable third;
  ASSERT_TRUE(pool.Grow(5, &third));  // Takes the end of the chain, not its beginning.
  EXPECT_EQ(pool.evicted_blocks(), 1u);
  PageTable fourth;
  EXPECT_EQ(pool.Adopt(keys, &fourth), 1u);
  EXPECT_FALSE(pool.Grow(8, &fourth));
}

// ---- Checkpoints ----

// A checkpoint with one tensor missing or changed is refused by name.
// python/tests/test_reference.py tests agreement with transformers.
class CheckpointTest : public testing::Test {
 protected:
  void Write(const std::string& config, const std::string& header, size_t bytes) {
    std::ofstream(scratch_.Sub("config.json")) << config;
    std::ofstream file(scratch_.Sub("model.safetensors"), std::ios::binary);
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << header << std::string(bytes, '\0');
  }
  std::string Load() {
    const auto weights = LoadCheckpoint(scratch_.path());
    return weights.ok() ? "ok" : weights.status().message();
  }

  const std::string config_ =
      R"({"model_type":"llama","vocab_size":8,"hidden_size":8,"intermediate_size":8,
          "num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":64})";
  ScratchDirectory scratch_;
};

TEST_F(CheckpointTest, AWrongCheckpointIsRefusedByName) {
  EXPECT_THAT(Load(), HasSubstr("config.json"));
  Write(config_, "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("there is no tensor model.embed_tokens.weight"));
  Write(config_, R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,64]}})", 32);
  EXPECT_THAT(Load(), HasSubstr("outside of the file"));
  Write(config_, R"({"a":7})", 0);
  EXPECT_THAT(Load(), HasSubstr("tensor a"));
  Write(config_, "no json", 0);
  EXPECT_THAT(Load(), HasSubstr("no JSON"));
  Write(R"({"model_type":"gpt2"})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("gpt2"));
  Write(R"({"attention_bias":true})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("attention_bias"));
  Write(R"({"rope_scaling":{"rope_type":"yarn"}})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("yarn"));
  Write(R"({"num_attention_heads":3,"num_key_value_heads":2})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("kv_heads must divide heads"));
}

TEST_F(CheckpointTest, ACheckpointThatCallsForTooMuchIsRefusedBeforeItIsRead) {
  Write(R"({"vocab_size":4294967304})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("vocab_size is 4294967304"));
  Write(R"({"vocab_size":1048576,"hidden_size":1048576,"head_dim":64})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("too large"));
  Write(R"({"num_hidden_layers":1000000})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("layers"));
  Write(R"({"a":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("config.json"));
  Write(R"({"rope_scaling":{"rope_type":"llama3","low_freq_factor":4}})", "{}", 0);
  EXPECT_THAT(Load(), HasSubstr("make no sense"));
  Write(R"({"vocab_size":1048576,"hidden_size":4096})",
        R"({"model.embed_tokens.weight":
            {"dtype":"F32","shape":[1048576,4096],"data_offsets":[0,0]}})",
        0);
  EXPECT_THAT(Load(), HasSubstr("wrong number of bytes"));
  Write(config_, R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[1e300,-5]}})", 32);
  EXPECT_THAT(Load(), HasSubstr("no whole number"));
}

TEST_F(CheckpointTest, AFileGivesTheWeightsThatWereWritten) {
  const ModelShape shape{.vocabulary = 8,
                         .hidden = 8,
                         .intermediate = 8,
                         .layers = 1,
                         .heads = 2,
                         .kv_heads = 2,
                         .head_dim = 4,
                         .max_positions = 64,
                         .norm_epsilon = 1e-6F};
  Weights written;
  written.shape = shape;
  SeededRandom random(3);
  std::string header;
  std::string bytes;
  for (const NamedTensor& tensor : TensorsOf(shape, false)) {
    std::vector<float> values(tensor.rows * tensor.columns);
    for (float& value : values) value = static_cast<float>(random.Below(2001)) / 1000.0F - 1;
    SetTensor(&written, tensor, values);
    const size_t begin = bytes.size();
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}{}],"data_offsets":[{},{}]}})",
                          header.empty() ? "{" : ",", tensor.name,
                          tensor.rows == 1 ? std::string() : fmt::format("{},", tensor.rows),
                          tensor.columns, begin, bytes.size());
  }
  Write(config_, header + "}", 0);
  std::ofstream(scratch_.Sub("model.safetensors"), std::ios::app | std::ios::binary) << bytes;
  const auto read = LoadCheckpoint(scratch_.path());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  const std::vector<uint32_t> tokens = RandomTokens(50, shape.vocabulary, 4);
  OneSequence ours(std::make_shared<Weights>(written), ChosenKernels(), 1, 16);
  OneSequence theirs(*read, ChosenKernels(), 1, 16);
  EXPECT_TRUE(SameBits(theirs.Run(tokens, {50}), ours.Run(tokens, {50})));
}

}  // namespace
}  // namespace aquifer::reference
