// How fast keys are derived, against the bare hashing that is in them.
#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cstring>
#include <vector>

#include "aquifer/key.h"
#include "base/check.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"

namespace aquifer {
namespace {

constexpr uint32_t kTokensPerBlock = 16;
constexpr size_t kTokens = size_t{1} << 20;
constexpr size_t kBlocks = kTokens / kTokensPerBlock;

// A key of 16 tokens hashes this (docs/formats/key.md): 8 bytes of domain, the parent's 32, a token
// count, the tokens and a count of extras. SHA-256 pads them to whole units of 64.
constexpr size_t kMessageBytes = 8 + 32 + 4 + 4 * kTokensPerBlock + 4;
constexpr size_t kPaddedBytes = (kMessageBytes + 9 + 63) / 64 * 64;

class KeysContest final : public Contest {
 public:
  KeysContest() : tokens_(kTokens), keys_(kBlocks), messages_(kBlocks * kPaddedBytes) {
    for (size_t i = 0; i < kTokens; ++i) tokens_[i] = static_cast<uint32_t>(i * 2654435761u) >> 15;
    FillFromSeed(std::as_writable_bytes(std::span(messages_)), 1);
    algorithm_ = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    context_ = EVP_MD_CTX_new();
    AQ_CHECK(algorithm_ != nullptr && context_ != nullptr);
  }
  ~KeysContest() override {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(algorithm_);
  }

  Result<double> Limit() override {
    std::array<unsigned char, 32> digest{};
    const Stopwatch watch;
    AQ_CHECK(EVP_DigestInit_ex2(context_, algorithm_, nullptr) == 1);
    AQ_CHECK(EVP_DigestUpdate(context_, messages_.data(), messages_.size()) == 1);
    AQ_CHECK(EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1);
    KeepValue(digest);
    return MillionTokens(watch.Seconds());
  }

  Result<double> Ours() override {
    AQ_ASSIGN_OR_RETURN(const Key root, DeriveRoot({.tenant = "bench"}));
    const Stopwatch watch;
    AQ_ASSIGN_OR_RETURN(const size_t derived,
                        DeriveChain(root, tokens_, kTokensPerBlock, {}, keys_));
    const double seconds = watch.Seconds();
    AQ_CHECK(derived == kBlocks);
    return MillionTokens(seconds);
  }

  std::vector<std::string> PeerNames() const override { return {"evp-per-message"}; }

  // The same messages one by one, in the way that OpenSSL's manual shows.
  Result<double> Peer(size_t /*peer*/) override {
    std::array<unsigned char, 32> digest{};
    const Stopwatch watch;
    for (size_t i = 0; i < kBlocks; ++i) {
      AQ_CHECK(EVP_DigestInit_ex2(context_, algorithm_, nullptr) == 1);
      AQ_CHECK(EVP_DigestUpdate(context_, messages_.data() + i * kPaddedBytes, kMessageBytes) == 1);
      AQ_CHECK(EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1);
      std::memcpy(messages_.data() + i * kPaddedBytes, digest.data(), digest.size());
    }
    return MillionTokens(watch.Seconds());
  }

 private:
  static double MillionTokens(double seconds) {
    return static_cast<double>(kTokens) / 1e6 / seconds;
  }

  std::vector<uint32_t> tokens_;
  std::vector<Key> keys_;
  std::vector<unsigned char> messages_;
  EVP_MD* algorithm_ = nullptr;
  EVP_MD_CTX* context_ = nullptr;
};

}  // namespace

void AddKeyRows(std::vector<Row>* rows) {
  rows->push_back(
      {.name = "keys.derive",
       .unit = "Mtokens/s",
       .limit_is = fmt::format("SHA-256 by OpenSSL of the same bytes, padding included ({} for {} "
                               "tokens), all of them in one digest",
                               kPaddedBytes, kTokensPerBlock),
       .goal = 0.75,
       .prepare =
           [](const BenchEnvironment&) {
             return Result<std::unique_ptr<Contest>>(std::make_unique<KeysContest>());
           },
       .rounds = 31,
       .quick_rounds = 9});
}

}  // namespace aquifer
